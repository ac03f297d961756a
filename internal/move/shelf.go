package move

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"

	"holdfast"
)

// Shelf keeps images on disk, sealed: each in one file, mode 0600, encrypted and
// authenticated with age (age-encryption.org/v1), that only the shelf's key opens.
// A file that was cut off or changed does not open. Its methods may be called
// from any goroutine.
type Shelf struct {
	dir  string
	key  *age.X25519Identity
	most int64 // bytes of one image's files
}

// The names of files: KEY@EPOCH is whole; what is under way, or taken, is neither
// found nor listed.
const (
	comingSuffix = ".coming"
	takenSuffix  = ".taken"
)

// NewKey returns a new key, as OpenShelf takes it.
func NewKey() (string, error) {
	k, err := age.GenerateX25519Identity()
	if err != nil {
		return "", fmt.Errorf("make a key for images: %w", err)
	}
	return k.String(), nil
}

// OpenShelf makes dir (mode 0700) where it is not there, and removes what an
// earlier process left unfinished. key is from NewKey, with white space around it
// or not; most bounds the bytes of one image.
func OpenShelf(dir, key string, most int64) (*Shelf, error) {
	id, err := age.ParseX25519Identity(strings.TrimSpace(key))
	if err != nil { // which has the key's text in it
		return nil, holdfast.WithHint(errors.New("the key for images is none"), "`age-keygen` makes one: the line that begins with AGE-SECRET-KEY-")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep images: %w", err)
	}
	s := &Shelf{dir: dir, key: id, most: most}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("keep images: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), comingSuffix) || strings.HasSuffix(e.Name(), takenSuffix) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("keep images: %w", err)
	}
	return s, nil
}

func (s *Shelf) path(key holdfast.SessionKey, epoch holdfast.Epoch) (string, error) {
	if _, err := holdfast.ParseSessionKey(string(key)); err != nil {
		return "", err
	}
	return filepath.Join(s.dir, string(key)+"@"+strconv.FormatInt(int64(epoch), 10)), nil
}

// Put seals the image in dir. When it returns without an error the image is whole
// on disk; dir is left as it is. One of the same session and epoch that is there
// already is an error that wraps fs.ErrExist.
func (s *Shelf) Put(l Label, dir string) error {
	if err := s.put(l, dir); err != nil {
		return fmt.Errorf("keep the image of session %s: %w", l.Key, err)
	}
	return nil
}

func (s *Shelf) put(l Label, dir string) error {
	if err := l.check(); err != nil {
		return err
	}
	path, err := s.path(l.Key, l.Epoch)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, "*"+comingSuffix) // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(s.seal(f, l, dir), f.Sync(), f.Close()); err != nil {
		return err
	}
	// A link, unlike a rename, replaces nothing.
	if err := os.Link(f.Name(), path); err != nil {
		return err
	}
	return syncDir(s.dir)
}

func (s *Shelf) seal(w io.Writer, l Label, dir string) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	sealed, err := age.Encrypt(buffered, s.key.Recipient())
	if err != nil {
		return err
	}
	return errors.Join(Pack(sealed, l, dir), sealed.Close(), buffered.Flush())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Take opens the image of the session's life epoch into dir, as Unpack does, and
// removes it from the shelf before anything of it is read: nobody gets it twice,
// whatever becomes of this one. holdfast.ErrNotFound, ErrTorn, ErrTooBig.
func (s *Shelf) Take(key holdfast.SessionKey, epoch holdfast.Epoch, dir string) (Label, error) {
	l, err := s.take(key, epoch, dir)
	if err != nil {
		return l, fmt.Errorf("take the image of session %s at epoch %d: %w", key, epoch, err)
	}
	return l, nil
}

func (s *Shelf) take(key holdfast.SessionKey, epoch holdfast.Epoch, dir string) (Label, error) {
	path, err := s.path(key, epoch)
	if err != nil {
		return Label{}, err
	}
	taken := path + takenSuffix
	if err := os.Rename(path, taken); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", holdfast.ErrNotFound, err)
		}
		return Label{}, err
	}
	if err := syncDir(s.dir); err != nil {
		return Label{}, err
	}
	f, err := os.Open(taken)
	if err != nil {
		return Label{}, err
	}
	defer f.Close()
	if err := os.Remove(taken); err != nil { // its space goes with f
		return Label{}, err
	}
	open, err := age.Decrypt(bufio.NewReaderSize(f, 1<<20), s.key)
	if err != nil {
		return Label{}, fmt.Errorf("%w: %w", ErrTorn, err)
	}
	src := &sealedReader{r: open}
	l, err := Unpack(src, dir, s.most, func(l Label) error {
		if l.Key != key || l.Epoch != epoch {
			return fmt.Errorf("%w: it is of session %s at epoch %d", ErrTorn, l.Key, l.Epoch)
		}
		return nil
	})
	if err == nil {
		// What is behind the tar is authenticated, too.
		if _, err = io.Copy(io.Discard, src); err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return l, err
}

// sealedReader makes every error of the decryption ErrTorn.
type sealedReader struct{ r io.Reader }

func (s *sealedReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", ErrTorn, err)
	}
	return n, err
}

// Kept is an image on a shelf.
type Kept struct {
	Key     holdfast.SessionKey
	Epoch   holdfast.Epoch
	Bytes   int64 // on disk
	TakenAt time.Time
}

// List returns the images that are whole, by key and epoch as text.
func (s *Shelf) List() ([]Kept, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var out []Kept
	for _, e := range entries {
		name, number, ok := strings.Cut(e.Name(), "@")
		epoch, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil {
			continue // coming, taken, or somebody else's
		}
		fi, err := e.Info()
		if err != nil { // just taken
			continue
		}
		out = append(out, Kept{holdfast.SessionKey(name), holdfast.Epoch(epoch), fi.Size(), fi.ModTime()})
	}
	return out, nil
}

// Drop removes an image. One that is gone is no error.
func (s *Shelf) Drop(key holdfast.SessionKey, epoch holdfast.Epoch) error {
	path, err := s.path(key, epoch)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("drop the image of session %s: %w", key, err)
	}
	return nil
}

// Expire drops the images that were taken before the time, and returns them.
func (s *Shelf) Expire(before time.Time) ([]Kept, error) {
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	var gone []Kept
	for _, k := range all {
		if !k.TakenAt.Before(before) {
			continue
		}
		if dropErr := s.Drop(k.Key, k.Epoch); dropErr != nil {
			err = errors.Join(err, dropErr)
			continue
		}
		gone = append(gone, k)
	}
	return gone, err
}
