package profile

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/google/pprof/profile"

	"holdfast/internal/platform/atomicfile"
)

// Maximum lengths of a file in bytes, compressed and uncompressed. A recording of maxSamples
// is shorter.
const (
	maxPacked   = 64 << 20
	maxUnpacked = 64 << 20
)

// File is a recording that is being written. An existing file at its path stays until
// Commit.
type File struct {
	*atomicfile.File
	path string
}

// Create creates a file. It fails early, before the recording begins, if the file cannot
// be written.
func Create(path string) (*File, error) {
	st, err := os.Lstat(path)
	switch {
	case err == nil && !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s exists and is not a regular file", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	f, err := atomicfile.Create(path)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return &File{f, path}, nil
}

// Commit writes the recording and moves it to its path.
func (f *File) Commit(p *Profile) error {
	return f.CommitWith(func(w io.Writer) error { return Write(w, p) })
}

// CommitWith writes the file by calling write and moves it to its path. Only the file's
// owner can read it, because a recording shows everything that runs on a host.
func (f *File) CommitWith(write func(io.Writer) error) error {
	if err := write(f.File); err != nil {
		f.Abort()
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	return f.File.Commit(0o600)
}

// Abort removes the temporary file if there was no Commit.
func (f *File) Abort() { _ = f.File.Abort() }

// Write writes a recording, compressed.
func Write(w io.Writer, p *Profile) error {
	out, err := encode(p)
	if err != nil {
		return err
	}
	// The pprof library uses the best compression, which takes longer than the recording.
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	return errors.Join(out.WriteUncompressed(z), z.Close())
}

// Open reads a recording from a file. It returns ErrFormat if the file is not a recording.
func Open(path string) (*Profile, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // do not wait for a pipe's writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: it is not a regular file", path, ErrFormat)
	}
	p, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// Read reads an untrusted recording. It uses at most some hundred MiB of memory for any
// input. It returns ErrFormat for an invalid recording.
func Read(r io.Reader) (*Profile, error) {
	packed, err := io.ReadAll(io.LimitReader(r, maxPacked+1))
	switch {
	case err != nil:
		return nil, err
	case len(packed) == 0:
		return nil, fmt.Errorf("%w: it is empty", ErrFormat)
	case len(packed) > maxPacked:
		return nil, fmt.Errorf("%w: it is longer than %d MiB", ErrFormat, maxPacked>>20)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, truncated(err))
	}
	data, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrFormat, truncated(err))
	case len(data) > maxUnpacked:
		return nil, fmt.Errorf("%w: unpacked it is longer than %d MiB", ErrFormat, maxUnpacked>>20)
	}
	return parse(data)
}

// parse parses an unpacked recording.
func parse(data []byte) (*Profile, error) {
	if err := checkParts(data); err != nil {
		return nil, err
	}
	in, err := profile.ParseUncompressed(data)
	if err == nil {
		err = in.CheckValid()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return decode(in)
}

// truncated explains an unexpected end.
func truncated(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("it is truncated")
	}
	return err
}
