// Package journal keeps JSON rows in a file of bounded size, one row per line. It is
// for histories that operators read with cat and grep.
package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/atomicfile"
)

// File is a journal at Path. Older rows are at Path with ".1" appended. Neither file
// becomes larger than Max bytes. Its methods may be called from any goroutine and
// process.
type File struct {
	Path string
	Max  int64 // bytes of a file; one that would become larger is renamed
	// NoSync leaves rows in the kernel's cache: they survive the end of the process, and a
	// power cut may lose the last ones.
	NoSync bool
}

func (f File) older() string { return f.Path + ".1" }

// Append writes each value as a row, in one write. When it returns nil the rows survive a
// power cut, unless NoSync is set.
func (f File) Append(values ...any) error {
	lines, err := encode(values)
	if err != nil {
		return err
	}
	for {
		again, err := f.append(lines)
		if err != nil || !again {
			return err
		}
	}
}

// Replace makes the values the only rows. A power cut leaves the old rows or the new ones.
// No other writer may use the file meanwhile.
func (f File) Replace(values ...any) error {
	lines, err := encode(values)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(f.Path, lines, 0o600); err != nil {
		return err
	}
	if err := os.Remove(f.older()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func encode(values []any) ([]byte, error) {
	var lines []byte
	for _, v := range values {
		line, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		lines = append(append(lines, line...), '\n')
	}
	return lines, nil
}

// append writes lines. It reports again if another writer has renamed the file
// meanwhile. It also reports again after it has renamed a file in which the line does
// not fit.
func (f File) append(line []byte) (again bool, err error) {
	file, err := os.OpenFile(f.Path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return false, err
	}
	defer file.Close() // and with it the lock
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return false, err
	}
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	if now, err := os.Stat(f.Path); err != nil || !os.SameFile(info, now) {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return true, err
	}
	size := info.Size()
	if size > 0 && size+int64(len(line)) > f.Max {
		return true, os.Rename(f.Path, f.older())
	}
	// A power cut during a write leaves a line without a line break. Only that row is
	// lost.
	last := []byte{'\n'}
	if size > 0 {
		if _, err := file.ReadAt(last, size-1); err != nil {
			return false, err
		}
	}
	if last[0] != '\n' {
		line = append([]byte{'\n'}, line...)
	}
	if _, err := file.Write(line); err != nil {
		return false, err
	}
	if f.NoSync {
		return false, nil
	}
	if err := file.Sync(); err != nil || size > 0 {
		return false, err
	}
	return false, atomicfile.SyncDir(filepath.Dir(f.Path)) // the name is new
}

// Read returns the rows of f that valid accepts, the oldest first. It leaves out
// lines that are not JSON of a T, such as one that a power cut has cut off. A file
// that does not exist has no rows.
func Read[T any](f File, valid func(T) bool) ([]T, error) {
	var rows []T
	for _, path := range []string{f.older(), f.Path} {
		text, err := read(path, 2*f.Max)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(text) {
			var row T
			if json.Unmarshal(line, &row) == nil && valid(row) {
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}

func read(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, most))
}
