package move

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
)

// Shelf keeps images on disk, sealed: each in one file, mode 0600, encrypted and
// authenticated with age (age-encryption.org/v1), that only the shelf's key opens.
// A file that was cut off or changed does not open. Its methods may be called
// from any goroutine.
type Shelf struct {
	o   ShelfOptions
	key *age.X25519Identity
}

// ShelfOptions are a shelf's.
type ShelfOptions struct {
	Dir   string
	Owner holdfast.NodeID // of what is unfinished in Dir, where others have a shelf in it, too
	Most  int64           // bytes of one image's files
	// Remote is where the sealed files are kept instead of Dir, which has those
	// that are on their way then. nil: in Dir.
	Remote Remote
}

// Remote keeps files by name. A name is made of the characters of a key, '@' and
// digits. Its methods may be called from any goroutine.
type Remote interface {
	// Put keeps what is in file under the name.
	Put(ctx context.Context, name, file string) error
	// Get writes what is kept under the name into file, which is there and empty.
	Get(ctx context.Context, name, file string) error
	// Drop has nothing kept under the name any more. One that is gone is no error.
	Drop(ctx context.Context, name string) error
}

// The names of files: KEY@EPOCH is whole; what is under way, or taken, is neither
// found nor listed. Their names begin with the owner's.
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

// OpenShelf makes o.Dir (mode 0700) where it is not there, and removes what an
// earlier process of the owner left unfinished. key is from NewKey, with white space
// around it or not.
func OpenShelf(o ShelfOptions, key string) (*Shelf, error) {
	id, err := age.ParseX25519Identity(strings.TrimSpace(key))
	if err != nil { // which has the key's text in it
		return nil, holdfast.WithHint(errors.New("the key for images is none"), "`age-keygen` makes one: the line that begins with AGE-SECRET-KEY-")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep images: %w", err)
	}
	s := &Shelf{o: o, key: id}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("keep images: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), s.mine("")) && (strings.HasSuffix(e.Name(), comingSuffix) || strings.HasSuffix(e.Name(), takenSuffix)) {
			err = errors.Join(err, os.Remove(filepath.Join(o.Dir, e.Name())))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("keep images: %w", err)
	}
	return s, nil
}

// mine is a name of something unfinished. Two shelves' do not begin alike.
func (s *Shelf) mine(name string) string { return fmt.Sprintf(".%x.%s", string(s.o.Owner), name) }

func nameOf(key holdfast.SessionKey, epoch holdfast.Epoch) (string, error) {
	if _, err := holdfast.ParseSessionKey(string(key)); err != nil {
		return "", err
	}
	return string(key) + "@" + strconv.FormatInt(int64(epoch), 10), nil
}

// Put seals the image in dir. When it returns without an error the image is whole
// on disk; dir is left as it is. One of the same session and epoch that is there
// already is an error that wraps fs.ErrExist.
func (s *Shelf) Put(ctx context.Context, l Label, dir string) error {
	if err := s.put(ctx, l, dir); err != nil {
		return fmt.Errorf("keep the image of session %s: %w", l.Key, err)
	}
	return nil
}

func (s *Shelf) put(ctx context.Context, l Label, dir string) error {
	if err := l.check(); err != nil {
		return err
	}
	name, err := nameOf(l.Key, l.Epoch)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.o.Dir, s.mine("*"+comingSuffix)) // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(s.seal(f, l, dir), f.Sync(), f.Close()); err != nil {
		return err
	}
	if s.o.Remote != nil {
		return s.o.Remote.Put(ctx, name, f.Name())
	}
	// A link, unlike a rename, replaces nothing.
	if err := os.Link(f.Name(), filepath.Join(s.o.Dir, name)); err != nil {
		return err
	}
	return atomicfile.SyncDir(s.o.Dir)
}

func (s *Shelf) seal(w io.Writer, l Label, dir string) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	sealed, err := age.Encrypt(buffered, s.key.Recipient())
	if err != nil {
		return err
	}
	return errors.Join(Pack(sealed, l, dir), sealed.Close(), buffered.Flush())
}

// Take opens the image of the session's life epoch into dir, as Unpack does, and
// removes it from the shelf before anything of it is read: nobody gets it twice,
// whatever becomes of this one. (From a Remote that gives what it was told to drop
// it is had once only as far as only the one is asked who has the session.)
// holdfast.ErrNotFound, ErrTorn, ErrTooBig.
func (s *Shelf) Take(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, dir string) (Label, error) {
	var l Label
	err := s.open(ctx, key, epoch, func(r io.Reader) (err error) {
		l, err = Unpack(r, dir, s.o.Most, func(l Label) error {
			if l.Key != key || l.Epoch != epoch {
				return fmt.Errorf("%w: it is of session %s at epoch %d", ErrTorn, l.Key, l.Epoch)
			}
			return nil
		})
		if err == nil {
			// What is behind the tar is authenticated, too.
			if _, err = io.Copy(io.Discard, r); err != nil {
				err = errors.Join(err, os.RemoveAll(dir))
			}
		}
		return err
	})
	return l, err
}

// Send is Take for another node: it writes the image to w as a stream, as Pack
// does. With an error what was written is not whole.
func (s *Shelf) Send(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, w io.Writer) error {
	return s.open(ctx, key, epoch, func(r io.Reader) error {
		_, err := io.Copy(w, r)
		return err
	})
}

// open takes an image from the shelf, and has it read.
func (s *Shelf) open(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, read func(io.Reader) error) error {
	f, err := s.take(ctx, key, epoch)
	if err == nil {
		defer f.Close()
		err = s.unseal(f, read)
	}
	if err != nil {
		return fmt.Errorf("take the image of session %s at epoch %d: %w", key, epoch, err)
	}
	return nil
}

// take returns an image's file, which has no name any more.
func (s *Shelf) take(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (*os.File, error) {
	name, err := nameOf(key, epoch)
	if err != nil {
		return nil, err
	}
	if s.o.Remote != nil {
		return s.takeRemote(ctx, name)
	}
	taken := filepath.Join(s.o.Dir, s.mine(name+takenSuffix))
	if err := os.Rename(filepath.Join(s.o.Dir, name), taken); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", holdfast.ErrNotFound, err)
		}
		return nil, err
	}
	if err := atomicfile.SyncDir(s.o.Dir); err != nil {
		return nil, err
	}
	return openOnce(taken)
}

func (s *Shelf) takeRemote(ctx context.Context, name string) (*os.File, error) {
	coming, err := os.CreateTemp(s.o.Dir, s.mine("*"+comingSuffix))
	if err != nil {
		return nil, err
	}
	err = errors.Join(coming.Close(), s.o.Remote.Get(ctx, name, coming.Name()))
	if err == nil {
		err = s.o.Remote.Drop(ctx, name)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(coming.Name()))
	}
	return openOnce(coming.Name())
}

// openOnce opens a file and takes its name away: its space goes with it.
func openOnce(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *Shelf) unseal(f io.Reader, read func(io.Reader) error) error {
	open, err := age.Decrypt(bufio.NewReaderSize(f, 1<<20), s.key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTorn, err)
	}
	return read(&sealedReader{r: open})
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

// List returns the images in Dir that are whole, by key and epoch as text. What a
// Remote has is in no list.
func (s *Shelf) List() ([]Kept, error) {
	entries, err := os.ReadDir(s.o.Dir)
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
func (s *Shelf) Drop(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) error {
	name, err := nameOf(key, epoch)
	if err == nil && s.o.Remote != nil {
		err = s.o.Remote.Drop(ctx, name)
	} else if err == nil {
		err = os.Remove(filepath.Join(s.o.Dir, name))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("drop the image of session %s: %w", key, err)
	}
	return nil
}

// Why an image is dropped that nobody has taken.
const (
	TooOld  = "expired"
	TooMuch = "space"
	Unknown = "unknown" // nobody knows of it: its agent ended before it could say so
)

// Dropped is an image that has to go, and why.
type Dropped struct {
	Kept
	Why string
}

// Bounds are what a shelf may keep.
type Bounds struct {
	Age   time.Duration // over 0
	Space int64         // bytes of all files
	Grace time.Duration // that one may be unknown, after it was put
}

// Surplus says which of the kept have to go at a moment, with room for so many
// bytes more to be left: those too old, those that known does not know, and then
// the oldest until the rest fits.
func Surplus(all []Kept, b Bounds, more int64, now time.Time, known func(Kept) bool) (out []Dropped) {
	slices.SortStableFunc(all, func(a, b Kept) int { return b.TakenAt.Compare(a.TakenAt) }) // the newest first
	total, full := more, false
	for _, k := range all {
		age := now.Sub(k.TakenAt)
		switch {
		case age >= b.Age:
			out = append(out, Dropped{k, TooOld})
		case age >= b.Grace && !known(k):
			out = append(out, Dropped{k, Unknown})
		case full || total+k.Bytes > b.Space:
			full = true
			out = append(out, Dropped{k, TooMuch})
		default:
			total += k.Bytes
		}
	}
	return out
}
