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
	"time"

	"holdfast"
)

// Errors that callers test for with errors.Is.
var (
	// ErrTorn means that an image is incomplete or was modified.
	ErrTorn = errors.New("the image is incomplete")
	// ErrTooBig means that an image exceeds the size limit.
	ErrTooBig = errors.New("the image is too large")
)

// Label identifies an image: the session, and the epoch in which it was taken.
type Label struct {
	Key      holdfast.SessionKey `json:"key"`
	Epoch    holdfast.Epoch      `json:"epoch"` // in which the image was taken
	Template string              `json:"template"`
	TakenAt  time.Time           `json:"taken_at"`
	Bytes    int64               `json:"bytes"` // of all its files
	// Snapshot is the name of a snapshot; "" for the image of a session's next epoch.
	Snapshot holdfast.SessionKey `json:"snapshot,omitempty"`
	// WakeAt is the time that is set for a session that moves.
	WakeAt time.Time `json:"wake_at,omitzero"`
}

func (l Label) check() error {
	if _, err := holdfast.ParseSessionKey(string(l.Key)); err != nil {
		return err
	}
	if l.Epoch <= 0 || l.Bytes < 0 {
		return fmt.Errorf("invalid label: epoch %d, %d bytes", l.Epoch, l.Bytes)
	}
	return nil
}

// An image as a stream is a tar archive: the label, the files sorted by name, and
// an end entry, without which the image is incomplete.
const (
	labelName = "label.json"
	endName   = "end"
	maxLabel  = 4 << 10 // bytes
	maxFiles  = 16
)

// Pack writes the image in dir to w and sets l.Bytes in the label that it writes.
// dir has regular files only.
func Pack(w io.Writer, l Label, dir string) error {
	size, err := sizeOf(dir)
	if err == nil {
		l.Bytes = size
		err = pack(tar.NewWriter(w), l, dir)
	}
	if err != nil {
		return fmt.Errorf("pack the image of session %s: %w", l.Key, err)
	}
	return nil
}

// sizeOf returns the total size of the files of an image, in bytes.
func sizeOf(dir string) (size int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		fi, err := e.Info()
		switch {
		case err != nil:
			return 0, err
		case !fi.Mode().IsRegular() || e.Name() == labelName || e.Name() == endName:
			return 0, fmt.Errorf("%s does not belong to an image", e.Name())
		}
		size += fi.Size()
	}
	if len(entries) == 0 || len(entries) > maxFiles {
		return 0, fmt.Errorf("%d files; an image has 1 to %d", len(entries), maxFiles)
	}
	return size, nil
}

func pack(w *tar.Writer, l Label, dir string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := packText(w, labelName, text); err != nil {
		return err
	}
	if err := w.AddFS(os.DirFS(dir)); err != nil { // a file that has grown since is an error
		return err
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

// Unpack reads an image into dir, which it creates (mode 0700, files 0600) and which
// must not exist. most limits the bytes of the image's files. accept is called with
// the label before the files are read; nil accepts every label. On an error Unpack
// removes dir. Errors: ErrTorn, ErrTooBig, and those of accept.
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
		return l, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooBig, l.Bytes, most)
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

// torn converts an unexpected end of the archive to ErrTorn.
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
		return l, fmt.Errorf("%w: the label is missing", ErrTorn)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return l, torn(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, fmt.Errorf("%w: label: %w", ErrTorn, err)
	}
	if err := l.check(); err != nil {
		return l, fmt.Errorf("%w: label: %w", ErrTorn, err)
	}
	return l, nil
}

// unpackFiles reads the files, which have left bytes in total.
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
			return torn(expectEOF(r))
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) || filepath.Base(h.Name) != h.Name || h.Size > left || n == maxFiles {
			return fmt.Errorf("%w: unexpected entry %.80q", ErrTorn, h.Name)
		}
		left -= h.Size
		if err := unpackFile(r, filepath.Join(dir, h.Name), h.Size); err != nil {
			return err
		}
	}
}

// expectEOF returns an error if the archive has data after its end entry.
func expectEOF(r *tar.Reader) error {
	if _, err := r.Next(); err != io.EOF {
		return errors.Join(fmt.Errorf("%w: data after the end entry", ErrTorn), err)
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
