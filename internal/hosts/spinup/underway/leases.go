package underway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/proc"
)

// DirName is the directory of leases in the directory that does not survive a
// boot.
const DirName = "spinups"

// Limits of a directory of leases.
const (
	MaxLeases = 256
	maxFiles  = 4 * MaxLeases // files examined
	maxLease  = 4 << 10       // bytes of one
	maxKind   = 32            // bytes
	// tornAfter is the minimum age of a temporary file that was never renamed to
	// its final name.
	tornAfter = time.Minute
)

// Leases are announcements of spin-ups as files, in a directory that only root
// may change. Every process that waits for spin-ups sees them, whether an agent
// runs or not. A lease counts until it expires on CLOCK_BOOTTIME or is ended,
// even if its process dies. It is created atomically (rename(2)). It ends with
// the boot, so it is not flushed to disk. A lease of another boot, one that
// claims more than MaxLife, and a torn one do not count, and are removed when the
// next lease is announced. Methods may be called from any goroutine and process.
type Leases struct {
	dir   string
	clock func() boottime.Instant
	boot  string // random(4), boot_id
}

// lease is the content of a lease file; the file's name is the entry's id.
type lease struct {
	Boot    string           `json:"boot_id"`
	Until   boottime.Instant `json:"until_boottime_ns"`
	Spinup  Entry            `json:"spinup"`
	present bool             // the file was read
}

// leaseID matches the name of a lease's file; beginning matches that of a file
// still being written.
var (
	leaseID   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{16}$`) })
	beginning = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{16}\.new$`) })
)

// OpenLeases returns the leases in a directory, which need not exist. clock is
// boottime.Now, except in tests.
func OpenLeases(dir string, clock func() boottime.Instant) (*Leases, error) {
	boot, err := proc.Host.BootID()
	if err != nil {
		return nil, fmt.Errorf("open the announced spin-ups: %w", err)
	}
	return &Leases{dir: dir, clock: clock, boot: boot}, nil
}

// Make makes the directory if it is missing. No lease can be announced before.
func (l *Leases) Make() error {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of announced spin-ups: %w", err)
	}
	root, err := l.open()
	if err != nil {
		return fmt.Errorf("make the directory of announced spin-ups: %w", err)
	}
	return root.Close()
}

// Begin announces a spin-up, like List.Begin. It returns ErrFull, or
// fs.ErrNotExist if there is no directory.
func (l *Leases) Begin(kind, name string, life time.Duration) (Entry, error) {
	if err := check(kind, name, life); err != nil {
		return Entry{}, err
	}
	root, err := l.open()
	if err != nil {
		return Entry{}, fmt.Errorf("announce a spin-up: %w", err)
	}
	defer root.Close()
	files, err := l.sweep(root)
	if err != nil {
		return Entry{}, fmt.Errorf("announce a spin-up: %w", err)
	}
	if files >= MaxLeases {
		return Entry{}, fmt.Errorf("%d spin-ups are announced: %w", files, ErrFull)
	}
	e := newEntry(kind, name, life, l.clock())
	text, err := json.Marshal(lease{Boot: l.boot, Until: e.until, Spinup: e.Entry})
	if err != nil {
		return Entry{}, err
	}
	if err := put(root, e.ID, text); err != nil {
		return Entry{}, fmt.Errorf("announce a spin-up: %w", err)
	}
	return e.Entry, nil
}

// put creates a file atomically.
func put(root *os.Root, name string, text []byte) error {
	f, err := root.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(name+".new", name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(name+".new"))
	}
	return nil
}

// End ends a lease. It returns holdfast.ErrNotFound if the lease has already
// ended.
func (l *Leases) End(id string) error {
	gone := fmt.Errorf("spin-up %q is not under way: %w", id, holdfast.ErrNotFound)
	if !leaseID().MatchString(id) {
		return gone
	}
	root, err := l.open()
	if errors.Is(err, fs.ErrNotExist) {
		return gone
	}
	if err != nil {
		return fmt.Errorf("end an announced spin-up: %w", err)
	}
	defer root.Close()
	one, err := l.read(root, id)
	if err != nil {
		return fmt.Errorf("end an announced spin-up: %w", err)
	}
	switch err := root.Remove(id); {
	case errors.Is(err, fs.ErrNotExist):
		return gone
	case err != nil:
		return fmt.Errorf("end an announced spin-up: %w", err)
	}
	if !l.counts(one, id) {
		return gone // it has expired
	}
	return nil
}

// active returns the leases that count, by id.
func (l *Leases) active() (map[string]entry, error) {
	root, err := l.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	names, err := list(root)
	if err != nil {
		return nil, err
	}
	var all map[string]entry
	for _, id := range names {
		if !leaseID().MatchString(id) {
			continue
		}
		one, err := l.read(root, id)
		if err != nil {
			return nil, err
		}
		if !l.counts(one, id) {
			continue
		}
		if all == nil {
			all = map[string]entry{}
		}
		all[id] = entry{Entry: one.Spinup, until: one.Until, leased: true}
	}
	return all, nil
}

// open opens the directory, and checks that no other user can change it.
func (l *Leases) open() (*os.Root, error) {
	info, err := os.Lstat(l.dir)
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return nil, holdfast.WithHint(fmt.Errorf("%s is not a directory that only this user can change", l.dir), "remove it; it is created again")
	}
	return os.OpenRoot(l.dir)
}

// list returns the names in the directory, up to maxFiles.
func list(root *os.Root) ([]string, error) {
	d, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxFiles)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// read reads a lease file. A missing, irregular or empty file is neither a lease
// nor an error.
func (l *Leases) read(root *os.Root, name string) (lease, error) {
	info, err := root.Lstat(name)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxLease) {
		return lease{}, nil
	}
	var f *os.File
	if err == nil {
		f, err = root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return lease{}, nil
	}
	if err != nil {
		return lease{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLease))
	if err != nil {
		return lease{}, err
	}
	var one lease
	if json.Unmarshal(text, &one) != nil {
		return lease{}, nil // torn
	}
	one.present = true
	return one, nil
}

// counts reports whether a lease announces a spin-up in progress.
func (l *Leases) counts(one lease, id string) bool {
	left := time.Duration(one.Until - l.clock())
	s := one.Spinup
	return one.present && one.Boot == l.boot && left > 0 && left <= MaxLife &&
		s.ID == id && s.Kind != "" && len(s.Kind) <= maxKind && len(s.Name) <= MaxName
}

// sweep removes leases that do not count, and returns the number of remaining
// files. It ignores files with foreign names.
func (l *Leases) sweep(root *os.Root) (left int, err error) {
	names, err := list(root)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		over, err := l.over(root, name)
		if err != nil {
			return left, err
		}
		if !over {
			left++
			continue
		}
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return left, err
		}
	}
	return left, nil
}

// over reports whether a file is to be removed.
func (l *Leases) over(root *os.Root, name string) (bool, error) {
	switch {
	case leaseID().MatchString(name):
		one, err := l.read(root, name)
		return err == nil && !l.counts(one, name), err
	case beginning().MatchString(name):
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil // it was renamed meanwhile
		}
		return err == nil && time.Since(info.ModTime()) > tornAfter, err
	}
	return false, nil
}
