// Package move is for images of sessions: what a container was saved to, on its
// way to another node or waiting on disk for the session's next life. An image is
// bound to one session and to the epoch that it was taken of, is whole or nothing,
// and is used once.
package move

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"holdfast"
)

// Errors that callers decide by; they come wrapped.
var (
	// ErrTorn is an image that ends too early, or that was changed.
	ErrTorn = errors.New("the image is not whole")
	// ErrTooBig is an image over the bound.
	ErrTooBig = errors.New("the image is too big")
)

// Label says what an image is of.
type Label struct {
	Key      holdfast.SessionKey `json:"key"`
	Epoch    holdfast.Epoch      `json:"epoch"` // of the life that it was taken of
	Template string              `json:"template"`
	TakenAt  time.Time           `json:"taken_at"`
	Bytes    int64               `json:"bytes"` // of all its files
}

func (l Label) check() error {
	if _, err := holdfast.ParseSessionKey(string(l.Key)); err != nil {
		return err
	}
	if l.Epoch <= 0 || l.Bytes < 0 {
		return fmt.Errorf("an image of epoch %d with %d bytes", l.Epoch, l.Bytes)
	}
	return nil
}

// An image as a stream is a tar with the label, the files in the order of their
// names, and an entry that says that nothing is missing.
const (
	labelName = "label.json"
	endName   = "end"
	maxLabel  = 4 << 10 // bytes
	maxFiles  = 16
)

// Pack writes the image in dir, which has files only, to w. It fills in l.Bytes.
func Pack(w io.Writer, l Label, dir string) error {
	names, size, err := list(dir)
	if err != nil {
		return fmt.Errorf("pack the image of session %s: %w", l.Key, err)
	}
	l.Bytes = size
	if err := pack(tar.NewWriter(w), l, dir, names); err != nil {
		return fmt.Errorf("pack the image of session %s: %w", l.Key, err)
	}
	return nil
}

func list(dir string) (names []string, size int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		fi, err := e.Info()
		switch {
		case err != nil:
			return nil, 0, err
		case !fi.Mode().IsRegular() || e.Name() == labelName || e.Name() == endName:
			return nil, 0, fmt.Errorf("%s is no file of an image", e.Name())
		}
		names, size = append(names, e.Name()), size+fi.Size()
	}
	if len(names) == 0 || len(names) > maxFiles {
		return nil, 0, fmt.Errorf("%d files, an image has 1 to %d", len(names), maxFiles)
	}
	slices.Sort(names)
	return names, size, nil
}

func pack(w *tar.Writer, l Label, dir string, names []string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := packText(w, labelName, text); err != nil {
		return err
	}
	for _, name := range names {
		if err := packFile(w, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return errors.Join(packText(w, endName, nil), w.Close())
}

func packText(w *tar.Writer, name string, text []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := w.Write(text)
	return err
}

func packFile(w *tar.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: filepath.Base(path), Mode: 0o600, Size: fi.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f) // a file that grows meanwhile is an error
	return err
}

// Unpack reads an image into dir, which it makes (mode 0700, files 0600) and which
// must not be there. most bounds the bytes of its files. accept is asked when the
// label is there, before anything else is read; it may be nil. With an error
// nothing is left. ErrTorn, ErrTooBig, accept's.
func Unpack(r io.Reader, dir string, most int64, accept func(Label) error) (Label, error) {
	l, err := unpack(tar.NewReader(r), dir, most, accept)
	if err != nil {
		return l, fmt.Errorf("unpack an image: %w", err)
	}
	return l, nil
}

func unpack(r *tar.Reader, dir string, most int64, accept func(Label) error) (l Label, err error) {
	if l, err = unpackLabel(r); err != nil {
		return l, err
	}
	if l.Bytes > most {
		return l, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrTooBig, l.Bytes, most)
	}
	if accept != nil {
		if err := accept(l); err != nil {
			return l, err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return l, err
	}
	if err := unpackFiles(r, dir, l.Bytes); err != nil {
		return l, errors.Join(err, os.RemoveAll(dir))
	}
	return l, nil
}

// torn takes an end that comes too early for what it is.
func torn(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrHeader) {
		return fmt.Errorf("%w: %w", ErrTorn, err)
	}
	return err
}

func unpackLabel(r *tar.Reader) (l Label, err error) {
	h, err := r.Next()
	if err != nil {
		return l, torn(err)
	}
	if h.Name != labelName || h.Size > maxLabel {
		return l, fmt.Errorf("%w: it does not begin with its label", ErrTorn)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return l, torn(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, fmt.Errorf("%w: its label: %w", ErrTorn, err)
	}
	if err := l.check(); err != nil {
		return l, fmt.Errorf("%w: its label: %w", ErrTorn, err)
	}
	return l, nil
}

// unpackFiles reads all files, which have left bytes together.
func unpackFiles(r *tar.Reader, dir string, left int64) error {
	for n := 0; ; n++ {
		h, err := r.Next()
		if err != nil {
			return torn(err)
		}
		if h.Name == endName {
			if left != 0 || n == 0 {
				return fmt.Errorf("%w: %d bytes are missing", ErrTorn, left)
			}
			return torn(drain(r))
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) || filepath.Base(h.Name) != h.Name || h.Size > left || n == maxFiles {
			return fmt.Errorf("%w: %.80q is no file of it", ErrTorn, h.Name)
		}
		left -= h.Size
		if err := unpackFile(r, filepath.Join(dir, h.Name), h.Size); err != nil {
			return err
		}
	}
}

// drain reads to the end, behind which nothing else may come.
func drain(r *tar.Reader) error {
	if _, err := r.Next(); err != io.EOF {
		return errors.Join(fmt.Errorf("%w: it goes on behind its end", ErrTorn), err)
	}
	return nil
}

func unpackFile(r io.Reader, path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(torn(err), f.Close())
}
