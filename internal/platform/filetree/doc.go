// Package filetree copies trees of files from and to tar archives. The directories may
// belong to a hostile program that changes them meanwhile: each step works on an open
// directory and on one name in it, and follows no link out of the tree.
package filetree

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Errors that callers decide by; they come wrapped.
var (
	// ErrArchive means that the archive is not valid, or has an entry that would leave
	// the tree.
	ErrArchive = errors.New("the archive is not valid")
	// ErrTooDeep means that a directory is too far below the first one.
	ErrTooDeep = fmt.Errorf("it is deeper than %d directories", maxDepth)
	// ErrChanged means that a file became shorter while it was read.
	ErrChanged = errors.New("it became shorter while it was read")
	// ErrType means that a file of another type is in the way.
	ErrType = errors.New("a file of another type has this name")
)

// Bounds.
const (
	maxDepth = 256       // directories that are open at once
	batch    = 128       // names that are read at once
	chunk    = 256 << 10 // bytes of one read or write
	maxLinks = 100_000   // files with several names that Pack recognizes
	maxTimes = 10_000    // directories whose times Unpack sets
)

// Total is what was copied.
type Total struct {
	Entries int64
	Bytes   int64 // of contents
	Skipped int64 // sockets and devices
}

// copyBytes copies until r ends or ctx is done, and counts the bytes in seen.
func copyBytes(ctx context.Context, w io.Writer, r io.Reader, seen func(int)) (total int64, err error) {
	buf := make([]byte, chunk)
	for {
		if err := context.Cause(ctx); err != nil {
			return total, err
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return total, err
			}
			total += int64(n)
			if seen != nil {
				seen(n)
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
