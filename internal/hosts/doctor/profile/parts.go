package profile

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
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
	weightOfObject = 4 // an object, in numbers
)

// checkParts refuses a file for which the parser would use far more memory than the file's
// length. It walks over the two outermost levels of the protobuf encoding
// (protobuf.dev/programming-guides/encoding).
func checkParts(data []byte) error {
	parts := 0
	err := fields(data, func(number protowire.Number, content []byte) error {
		parts += weightOfObject
		if number == fieldSample || number == fieldLocation {
			err := fields(content, func(_ protowire.Number, inner []byte) error {
				parts += weightOfObject + len(inner) // packed numbers have at least one byte each
				return tooMany(parts)
			})
			if err != nil {
				return err
			}
		}
		return tooMany(parts)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return nil
}

func tooMany(parts int) error {
	if parts > maxParts {
		return errors.New("it has more parts than a recording can have")
	}
	return nil
}

// fields calls f for each field of a message, with its content if it has bytes.
func fields(b []byte, f func(number protowire.Number, content []byte) error) error {
	for len(b) > 0 {
		number, kind, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return errWire
		}
		value := protowire.ConsumeFieldValue(number, kind, b[tag:])
		if value < 0 {
			return errWire
		}
		var content []byte
		if kind == protowire.BytesType {
			content, _ = protowire.ConsumeBytes(b[tag:])
		}
		if err := f(number, content); err != nil {
			return err
		}
		b = b[tag+value:]
	}
	return nil
}

var errWire = errors.New("it is damaged or not a profile")
