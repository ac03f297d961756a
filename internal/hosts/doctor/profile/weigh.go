package profile

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// maxParts bounds the number of parts in a file: the parser creates an object of up to
// some hundred bytes for as little as two bytes of the file. A recording with maxSamples
// has half as many parts.
const maxParts = 16_000_000

// Field numbers of a profile that contain further parts
// (github.com/google/pprof/proto/profile.proto).
const (
	fieldSample    = 2
	fieldLocation  = 4
	wireVarint     = 0
	wireFixed64    = 1
	wireBytes      = 2
	wireFixed32    = 5
	weightOfObject = 4 // an object, in numbers
)

// weigh refuses a file for which the parser would use far more memory than the file's
// length. It walks over the two outermost levels of the protobuf encoding
// (protobuf.dev/programming-guides/encoding).
func weigh(data []byte) error {
	parts := 0
	err := fields(data, func(number uint64, content []byte) error {
		parts += weightOfObject
		if number == fieldSample || number == fieldLocation {
			err := fields(content, func(_ uint64, inner []byte) error {
				parts += weightOfObject + len(inner) // packed numbers have at least one byte each
				return over(parts)
			})
			if err != nil {
				return err
			}
		}
		return over(parts)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return nil
}

func over(parts int) error {
	if parts > maxParts {
		return errors.New("it has more parts than a recording can have")
	}
	return nil
}

// fields calls f for each field of a message, with its content if it has bytes.
func fields(b []byte, f func(number uint64, content []byte) error) error {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return errWire
		}
		b = b[n:]
		var content []byte
		skip := 0
		switch tag & 7 {
		case wireVarint:
			_, skip = binary.Uvarint(b)
		case wireFixed64:
			skip = 8
		case wireFixed32:
			skip = 4
		case wireBytes:
			size, n := binary.Uvarint(b)
			if n <= 0 || size > uint64(len(b)-n) {
				return errWire
			}
			content, skip = b[n:n+int(size)], n+int(size)
		}
		if skip <= 0 || skip > len(b) {
			return errWire
		}
		b = b[skip:]
		if err := f(tag>>3, content); err != nil {
			return err
		}
	}
	return nil
}

var errWire = errors.New("it is damaged or not a profile")
