// Package keyfile reads files with keys and certificates. It refuses a secret file
// that other users can read. It reads files again when they change, so that a renewed
// certificate takes effect without a restart.
package keyfile

import (
	"fmt"
	"io"
	"iter"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast"
)

// MaxSize is the largest file that is read, in bytes. A bundle of certificates
// or a list of secrets is a few kilobytes.
const MaxSize = 256 << 10

// Read reads a file that is not secret. A file larger than MaxSize, or not a regular
// file, is an error.
func Read(path string) ([]byte, error) { return read(path, false) }

// ReadSecret reads a file that only its owner may read: with any permission for
// group or others it is an error, with a hint.
func ReadSecret(path string) ([]byte, error) { return read(path, true) }

func read(path string, secret bool) ([]byte, error) {
	// Without O_NONBLOCK, opening a pipe waits for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the open file; the path may lead to another one by now
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if perm := info.Mode().Perm(); secret && perm&0o077 != 0 {
		return nil, holdfast.WithHint(fmt.Errorf("%s is secret, and its mode %04o lets other users read it", path, perm), "chmod 600 "+path)
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > MaxSize {
		return nil, fmt.Errorf("%s has more than %d bytes", path, MaxSize)
	}
	return text, nil
}

// Lines yields the words of each line of text, by the line's number from 1. It skips
// empty lines and lines that begin with '#'.
func Lines(text string) iter.Seq2[int, []string] {
	return func(yield func(int, []string) bool) {
		n := 0
		for line := range strings.Lines(text) {
			n++
			words := strings.Fields(line)
			if len(words) == 0 || strings.HasPrefix(words[0], "#") {
				continue
			}
			if !yield(n, words) {
				return
			}
		}
	}
}
