// Package boltfile opens files of bbolt, and replaces one that is damaged by an
// empty one.
package boltfile

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"holdfast"
)

// ErrDamaged means that a file is not what bbolt, or the caller, has written.
var ErrDamaged = errors.New("the file is damaged")

// File is a file that is opened for each call only, so that a command can read it
// beside an agent. Its methods may be called from any goroutine and process.
type File struct {
	Path    string
	Name    string        // of what it keeps, for errors and the log
	Buckets [][]byte      // that exist in each transaction
	Timeout time.Duration // of waiting for a process that has the file open
	NoSync  bool          // a power cut may lose changes: for tests
	Log     *slog.Logger
}

// Update calls do in a transaction that writes. do may be called a second time,
// with an empty file, when the first call fails because the file is damaged.
// holdfast.ErrBusy.
func (f *File) Update(do func(*bbolt.Tx) error) error {
	return f.run(func(db *bbolt.DB) error {
		return db.Update(func(tx *bbolt.Tx) error {
			for _, b := range f.Buckets {
				if _, err := tx.CreateBucketIfNotExists(b); err != nil {
					return err
				}
			}
			return do(tx)
		})
	})
}

// View calls do in a transaction that reads, as Update. It does not call do where
// the file does not exist or is empty, and does not write: a full disk is no error.
// holdfast.ErrBusy.
func (f *File) View(do func(*bbolt.Tx) error) error {
	if ok, err := exists(f.Path); err == nil && !ok {
		return nil
	}
	return f.run(func(db *bbolt.DB) error {
		return db.View(func(tx *bbolt.Tx) error {
			for _, b := range f.Buckets {
				if tx.Bucket(b) == nil {
					return nil // the file is new
				}
			}
			return do(tx)
		})
	})
}

func (f *File) run(do func(*bbolt.DB) error) error {
	err := os.MkdirAll(filepath.Dir(f.Path), 0o700)
	if err == nil {
		err = f.open(do)
	}
	if errors.Is(err, ErrDamaged) {
		if err = SetAside(f.Path, f.Name, f.Log, err); err == nil {
			err = f.open(do)
		}
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", f.Name, err)
	}
	return nil
}

// open opens the file, calls do, and closes the file. bbolt panics at a broken
// page.
func (f *File) open(do func(*bbolt.DB) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	db, err := Open(f.Path, bbolt.Options{Timeout: f.Timeout, NoSync: f.NoSync})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return do(db)
}

// Open opens a file as bbolt.Open does. The error is ErrDamaged where the file is
// none of bbolt's, and holdfast.ErrBusy where another process has it open after
// o.Timeout.
func Open(path string, o bbolt.Options) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &o)
	switch {
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	case errors.Is(err, berrors.ErrTimeout):
		err = holdfast.WithHint(fmt.Errorf("%w: %s is held open: %w", holdfast.ErrBusy, path, err), "another process has had it open for seconds; try again")
	}
	return db, err
}

// SetAside renames a damaged file to path with ".damaged-" and the time, and logs
// that.
func SetAside(path, name string, log *slog.Logger, damage error) error {
	aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000")
	if err := os.Rename(path, aside); err != nil {
		return fmt.Errorf("move the damaged file aside: %w", err)
	}
	log.Warn("a damaged file was moved aside; a new one is begun", "keeps", name, "moved_to", aside, "err", damage)
	return nil
}

// Check reads every page in use, and then calls verify. The error is ErrDamaged
// where a page is broken. bbolt itself reads a page only when it needs it, and then
// a broken one ends the program: by a panic, or, in a file that was cut off, by a
// fault at an address that the mapping no longer backs. Check catches both. A file
// that does not exist or is empty is sound.
func Check(path string, timeout time.Duration, verify func(*bbolt.Tx) error) (err error) {
	if ok, err := exists(path); !ok {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var db *bbolt.DB
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	if db, err = Open(path, bbolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: timeout}); err != nil {
		return err
	}
	return db.View(func(tx *bbolt.Tx) error {
		if err := checkPages(tx); err != nil {
			return err
		}
		return verify(tx)
	})
}

func checkPages(tx *bbolt.Tx) error {
	// bbolt's check runs in a goroutine of its own, where a fault at a page beyond
	// the end of the file could not be caught.
	info, err := os.Stat(tx.DB().Path())
	if err != nil {
		return err
	}
	if info.Size() < tx.Size() {
		return fmt.Errorf("%w: it was cut off: %d of %d bytes are there", ErrDamaged, info.Size(), tx.Size())
	}
	var bad error
	for found := range tx.Check() { // the goroutine ends when all of its errors are received
		if bad == nil {
			bad = fmt.Errorf("%w: %w", ErrDamaged, found)
		}
	}
	return bad
}

// exists reports whether there is a file with something in it.
func exists(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return false, nil
	}
	return err == nil, err
}
