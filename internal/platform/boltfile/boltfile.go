// Package boltfile opens bbolt files, and replaces a damaged file with an empty one.
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

// ErrDamaged means that the content of a file is not valid.
var ErrDamaged = errors.New("the file is damaged")

// File is a bbolt file that each call opens and closes, so that a command can read it
// while an agent runs. Its methods may be called from any goroutine and process.
type File struct {
	Path    string
	Name    string        // of its content, for errors and the log
	Buckets [][]byte      // that exist in each transaction
	Timeout time.Duration // of the wait for another process that has the file open
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

// View calls do in a read-only transaction. It does not call do if the file does not
// exist or is empty. It works on a full disk, because it does not write.
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

// open opens the file, calls do, and closes the file.
func (f *File) open(do func(*bbolt.DB) error) error {
	return Guard(func() (err error) {
		db, err := Open(f.Path, bbolt.Options{Timeout: f.Timeout, NoSync: f.NoSync})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		return do(db)
	})
}

// Guard calls do, which reads or writes a file. It makes ErrDamaged of a panic: bbolt
// panics at a broken page, and a read of mapped memory faults in a file that was cut off or
// on a disk that fails. It does not reach other goroutines.
func Guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	return do()
}

// Open is bbolt.Open. The error is ErrDamaged if the file is not a bbolt file, and
// holdfast.ErrBusy if another process still has it open after o.Timeout.
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

// SetAside renames a damaged file: it appends ".damaged-" and the time to its path. It
// logs the new path.
func SetAside(path, name string, log *slog.Logger, damage error) error {
	aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000")
	if err := os.Rename(path, aside); err != nil {
		return fmt.Errorf("move the damaged file aside: %w", err)
	}
	log.Warn("a damaged file was moved aside; a new one is begun", "keeps", name, "moved_to", aside, "err", damage)
	return nil
}

// Check reads every page in use, and then calls verify. The error is ErrDamaged if a
// page is broken. bbolt itself reads a page only when it needs it. A broken page then
// ends the program with a panic. In a truncated file, the read of a missing page ends
// it with a fault in mapped memory. Check catches both. A file that does not exist or
// is empty is valid.
func Check(path string, timeout time.Duration, verify func(*bbolt.Tx) error) error {
	if ok, err := exists(path); !ok {
		return err
	}
	return Guard(func() (err error) {
		db, err := Open(path, bbolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: timeout})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		return db.View(func(tx *bbolt.Tx) error {
			if err := checkPages(tx); err != nil {
				return err
			}
			return verify(tx)
		})
	})
}

func checkPages(tx *bbolt.Tx) error {
	// bbolt's check runs in its own goroutine. Check could not catch a fault there, so
	// it compares the file's size first.
	info, err := os.Stat(tx.DB().Path())
	if err != nil {
		return err
	}
	if info.Size() < tx.Size() {
		return fmt.Errorf("%w: it is truncated: %d of %d bytes are there", ErrDamaged, info.Size(), tx.Size())
	}
	var bad error
	for found := range tx.Check() { // the goroutine ends when all of its errors are received
		if bad == nil {
			bad = fmt.Errorf("%w: %w", ErrDamaged, found)
		}
	}
	return bad
}

// exists reports whether the file exists and is not empty.
func exists(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return false, nil
	}
	return err == nil, err
}
