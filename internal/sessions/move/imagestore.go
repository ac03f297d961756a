package move

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/platform/atomicfile"

	"filippo.io/age"

	"holdfast"
)

// ImageStore keeps images on disk. Each image is one file, mode 0600, encrypted and
// authenticated with age (age-encryption.org/v1), which only the key of the store
// opens. A truncated or modified file does not open. The methods may be called from
// any goroutine.
type ImageStore struct {
	o     StoreOptions
	files Remote // keeps the encrypted files
	key   *age.X25519Identity
}

// StoreOptions configure an ImageStore.
type StoreOptions struct {
	Dir   string
	Owner holdfast.NodeID // names the unfinished files of this process: other nodes may use Dir, too
	// MaxImage is the size limit of the files of one image, in bytes.
	MaxImage int64
	// Remote keeps the encrypted files instead of Dir, which then holds only files
	// that are being transferred. nil: Dir keeps them.
	Remote Remote
}

// Remote keeps files by name. A name consists of the characters of a session key,
// '@' and digits. The methods may be called from any goroutine.
type Remote interface {
	// Put stores the content of file under the name.
	Put(ctx context.Context, name, file string) error
	// Get writes the content of the name into file, which exists and is empty.
	Get(ctx context.Context, name, file string) error
	// Drop removes the name. It succeeds if the name does not exist.
	Drop(ctx context.Context, name string) error
}

// local is a Remote that keeps the files in a directory of this host.
type local struct{ dir string }

// Put implements Remote. Unlike rename(2), link(2) does not replace an existing file.
func (d local) Put(_ context.Context, name, file string) error {
	if err := os.Link(file, filepath.Join(d.dir, name)); err != nil {
		return err
	}
	return atomicfile.SyncDir(d.dir)
}

// Get implements Remote. It also removes the name, so that one of several callers gets
// the file.
func (d local) Get(_ context.Context, name, file string) error {
	err := os.Rename(filepath.Join(d.dir, name), file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", holdfast.ErrNotFound, err)
	}
	return errors.Join(err, atomicfile.SyncDir(d.dir))
}

// Drop implements Remote.
func (d local) Drop(_ context.Context, name string) error {
	if err := os.Remove(filepath.Join(d.dir, name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// A complete image is named KEY@EPOCH. Files that are being written, or that were
// taken, have this suffix and begin with the owner's id. Take and List ignore them.
const partialSuffix = ".coming"

// NewKey returns a new key, as OpenStore takes it.
func NewKey() (string, error) {
	k, err := age.GenerateX25519Identity()
	if err != nil {
		return "", fmt.Errorf("make a key for images: %w", err)
	}
	return k.String(), nil
}

// OpenStore creates o.Dir (mode 0700) if it is missing, and removes the files that
// an earlier process of the owner left unfinished. key comes from NewKey;
// surrounding white space is ignored.
func OpenStore(o StoreOptions, key string) (*ImageStore, error) {
	id, err := age.ParseX25519Identity(strings.TrimSpace(key))
	if err != nil { // not part of the returned error: it contains the key
		return nil, holdfast.WithHint(errors.New("the key for images is invalid"), "`age-keygen` makes one: the line that begins with AGE-SECRET-KEY-")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the image store: %w", err)
	}
	s := &ImageStore{o: o, files: o.Remote, key: id}
	if s.files == nil {
		s.files = local{o.Dir}
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the image store: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), s.tempName("")) && strings.HasSuffix(e.Name(), partialSuffix) {
			err = errors.Join(err, os.Remove(filepath.Join(o.Dir, e.Name())))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the image store: %w", err)
	}
	return s, nil
}

// tempName returns the name of an unfinished file. The names of two owners differ in
// their prefix.
func (s *ImageStore) tempName(name string) string {
	return fmt.Sprintf(".%x.%s", string(s.o.Owner), name)
}

func nameOf(key holdfast.SessionKey, epoch holdfast.Epoch) (string, error) {
	if _, err := holdfast.ParseSessionKey(string(key)); err != nil {
		return "", err
	}
	return string(key) + "@" + strconv.FormatInt(int64(epoch), 10), nil
}

// snapshotPrefix begins the names of snapshots. No key has a dot, so no other image has
// such a name.
const snapshotPrefix = "snapshot."

func snapshotName(name holdfast.SessionKey, epoch holdfast.Epoch) (string, error) {
	text, err := nameOf(name, epoch)
	return snapshotPrefix + text, err
}

// name returns the name of the file of an image.
func (l Label) name() (string, error) {
	if l.Snapshot != "" {
		return snapshotName(l.Snapshot, l.Epoch)
	}
	return nameOf(l.Key, l.Epoch)
}

// Put encrypts and stores the image in dir, and syncs it to disk. It leaves dir as it
// is. An image of the same session and epoch that exists already is an error that
// wraps fs.ErrExist.
func (s *ImageStore) Put(ctx context.Context, l Label, dir string) error {
	if err := s.put(ctx, l, dir); err != nil {
		return fmt.Errorf("store the image of session %s: %w", l.Key, err)
	}
	return nil
}

func (s *ImageStore) put(ctx context.Context, l Label, dir string) error {
	if err := l.check(); err != nil {
		return err
	}
	name, err := l.name()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.o.Dir, s.tempName("*"+partialSuffix)) // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(s.seal(f, l, dir), f.Sync(), f.Close()); err != nil {
		return err
	}
	return s.files.Put(ctx, name, f.Name())
}

func (s *ImageStore) seal(w io.Writer, l Label, dir string) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	sealed, err := age.Encrypt(buffered, s.key.Recipient())
	if err != nil {
		return err
	}
	return errors.Join(Pack(sealed, l, dir), sealed.Close(), buffered.Flush())
}

// Take decrypts the image of a session's epoch into dir, as Unpack does. It removes
// the image from the store before it reads any of it, so that no image is used
// twice, even if Take fails. (If a Remote still delivers a file that was
// dropped, an image is used once only because a single node owns the session.)
// Errors: holdfast.ErrNotFound, ErrTorn, ErrTooBig.
func (s *ImageStore) Take(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, dir string) (Label, error) {
	var l Label
	err := s.open(ctx, key, epoch, func(r io.Reader) (err error) {
		l, err = Unpack(r, dir, s.o.MaxImage, matches(key, epoch))
		if err == nil {
			// Data after the archive is authenticated, too.
			if _, err = io.Copy(io.Discard, r); err != nil {
				err = errors.Join(err, os.RemoveAll(dir))
			}
		}
		return err
	})
	return l, err
}

// Send is Take for another node: it writes the decrypted image to w, in the format of
// Pack. After an error, w has an incomplete image.
func (s *ImageStore) Send(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, w io.Writer) error {
	return s.open(ctx, key, epoch, func(r io.Reader) error {
		_, err := io.Copy(w, r)
		return err
	})
}

// open takes an image from the store and calls read with its decrypted content.
func (s *ImageStore) open(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, read func(io.Reader) error) error {
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

// Read calls read with the decrypted content of a snapshot, which stays in the store.
// holdfast.ErrNotFound, and the errors of read.
func (s *ImageStore) Read(ctx context.Context, name holdfast.SessionKey, epoch holdfast.Epoch, read func(io.Reader) error) error {
	f, err := s.snapshot(ctx, name, epoch)
	if err == nil {
		defer f.Close()
		err = s.unseal(f, read)
	}
	if err != nil {
		return fmt.Errorf("read snapshot %s of epoch %d: %w", name, epoch, err)
	}
	return nil
}

// snapshot opens the file of a snapshot.
func (s *ImageStore) snapshot(ctx context.Context, name holdfast.SessionKey, epoch holdfast.Epoch) (*os.File, error) {
	file, err := snapshotName(name, epoch)
	if err != nil {
		return nil, err
	}
	if s.o.Remote == nil {
		f, err := os.Open(filepath.Join(s.o.Dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", holdfast.ErrNotFound, err)
		}
		return f, err
	}
	coming, err := os.CreateTemp(s.o.Dir, s.tempName("*"+partialSuffix))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(coming.Close(), s.files.Get(ctx, file, coming.Name())); err != nil {
		return nil, errors.Join(err, os.Remove(coming.Name()))
	}
	return openOnce(coming.Name())
}

// take returns the file of an image and removes its name.
func (s *ImageStore) take(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (*os.File, error) {
	name, err := nameOf(key, epoch)
	if err != nil {
		return nil, err
	}
	coming, err := os.CreateTemp(s.o.Dir, s.tempName("*"+partialSuffix))
	if err != nil {
		return nil, err
	}
	err = errors.Join(coming.Close(), s.files.Get(ctx, name, coming.Name()))
	if err == nil {
		err = s.files.Drop(ctx, name)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(coming.Name()))
	}
	return openOnce(coming.Name())
}

// openOnce opens a file and removes its name, so that closing the file frees its
// space.
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

func (s *ImageStore) unseal(f *os.File, read func(io.Reader) error) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	open, size, err := age.DecryptReaderAt(f, fi.Size(), s.key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTorn, err)
	}
	return readAhead(sealedReader{open}, size, read)
}

// sealedReader converts every error of the decryption to ErrTorn.
type sealedReader struct{ r io.ReaderAt }

func (s sealedReader) ReadAt(p []byte, at int64) (int, error) {
	n, err := s.r.ReadAt(p, at)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", ErrTorn, err)
	}
	return n, err
}

// StoredImage is an image in a store.
type StoredImage struct {
	Key     holdfast.SessionKey // for a snapshot snapshotPrefix and its name
	Epoch   holdfast.Epoch
	Bytes   int64 // on disk
	TakenAt time.Time
}

// List returns the complete images in Dir, sorted by key and then by epoch as text.
// It does not list the images of a Remote.
func (s *ImageStore) List() ([]StoredImage, error) {
	entries, err := os.ReadDir(s.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var out []StoredImage
	for _, e := range entries {
		name, number, ok := strings.Cut(e.Name(), "@")
		epoch, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil {
			continue // unfinished, taken, or a file of another program
		}
		fi, err := e.Info()
		if err != nil { // taken meanwhile
			continue
		}
		out = append(out, StoredImage{holdfast.SessionKey(name), holdfast.Epoch(epoch), fi.Size(), fi.ModTime()})
	}
	return out, nil
}

// Drop removes an image. It succeeds if the image does not exist. The label needs a key, or a
// snapshot, and an epoch.
func (s *ImageStore) Drop(ctx context.Context, l Label) error {
	name, err := l.name()
	if err == nil {
		err = s.files.Drop(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("drop the image %s: %w", cmp.Or(l.Snapshot, l.Key), err)
	}
	return nil
}

// Reasons for removing an unused image.
const (
	Expired = "expired"
	NoSpace = "space"
	Unknown = "unknown" // no record refers to the image: its agent ended before it wrote one
)

// Removal is an image that has to be removed, and the reason.
type Removal struct {
	StoredImage
	Reason string
}

// Limits of a store.
type Limits struct {
	Age   time.Duration // over 0
	Space int64         // bytes of all files
	Grace time.Duration // how long after Put an image may be unknown
}

// Surplus returns the images to remove at the time now, so that more bytes fit:
// images over the age limit, images that known reports false for after the grace
// period, and then the oldest until the rest fits.
func Surplus(all []StoredImage, b Limits, more int64, now time.Time, known func(StoredImage) bool) (out []Removal) {
	sort.SliceStable(all, func(i, j int) bool { return all[j].TakenAt.Before(all[i].TakenAt) }) // the newest first
	total, full := more, false
	for _, k := range all {
		age := now.Sub(k.TakenAt)
		switch {
		case age >= b.Age:
			out = append(out, Removal{k, Expired})
		case age >= b.Grace && !known(k):
			out = append(out, Removal{k, Unknown})
		case full || total+k.Bytes > b.Space:
			full = true
			out = append(out, Removal{k, NoSpace})
		default:
			total += k.Bytes
		}
	}
	return out
}
