package spinup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"holdfast"
	"holdfast/internal/platform/boltfile"
)

// ErrInUse says that another process has the store open.
var ErrInUse = errors.New("another process has the spin-up records open")

// Keep bounds a Store.
type Keep struct {
	Count int           `yaml:"count"` // records at most
	Age   time.Duration `yaml:"age"`   // of the oldest
}

// DefaultKeep is a month, and about 30 MB on disk.
func DefaultKeep() Keep { return Keep{Count: 10_000, Age: 30 * 24 * time.Hour} }

// Validate checks that something is kept, and not without end.
func (k Keep) Validate() error {
	if k.Count < 1 || k.Count > 1_000_000 {
		return fmt.Errorf("count: %d is not within 1 and 1000000", k.Count)
	}
	if k.Age <= 0 {
		return fmt.Errorf("age: %v has to be over 0", k.Age)
	}
	return nil
}

// Store keeps records on disk, in one file of bbolt: it is in the program
// already, by way of etcd; a write is there after a crash or is not; keys are in
// order, which here is the order of time; and its lock keeps a second process
// out. SQL would bring a second database and nothing that is asked for: all
// questions are over a range of time.
//
// Its methods may be called from any goroutine.
type Store struct {
	db   *bbolt.DB
	keep Keep
}

// The file's buckets and keys.
var (
	recordsBucket = []byte("records") // id → record as JSON
	metaBucket    = []byte("meta")
	countKey      = []byte("count") // of the records, as JSON
)

// OpenStore opens the records at path, or begins them. A file that cannot be
// what a Store left is moved aside, to path with ".damaged" and a time, which is
// logged, and new records are begun. ErrInUse.
func OpenStore(path string, keep Keep, log *slog.Logger) (*Store, error) {
	if err := keep.Validate(); err != nil {
		return nil, fmt.Errorf("open the spin-up records: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open the spin-up records: %w", err)
	}
	db, err := openChecked(path)
	if errors.Is(err, boltfile.ErrDamaged) {
		if err = boltfile.SetAside(path, "the spin-up records", log, err); err == nil {
			db, err = openChecked(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the spin-up records: %w", err)
	}
	s := &Store{db: db, keep: keep}
	if err := db.Update(s.trim); err != nil {
		return nil, errors.Join(fmt.Errorf("open the spin-up records: %w", err), db.Close())
	}
	return s, nil
}

// ReadStore opens the records at path to be read, by any number of processes at
// once: nothing of them is changed, not even what a Keep would let go of, and
// Append fails. holdfast.ErrNotFound, ErrInUse; a damaged file is an error.
func ReadStore(path string) (*Store, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		err = holdfast.ErrNotFound
	}
	if err == nil {
		err = checkFile(path)
	}
	if errors.Is(err, boltfile.ErrDamaged) {
		err = holdfast.WithHint(err, "an agent that starts with this file moves it aside and begins new records")
	}
	if err != nil {
		return nil, fmt.Errorf("read the spin-up records: %w", err)
	}
	db, err := openFile(path, bbolt.Options{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("read the spin-up records: %w", err)
	}
	return &Store{db: db}, nil
}

// Close closes the file. No call may follow.
func (s *Store) Close() error { return s.db.Close() }

// Append keeps a record, and lets go of the oldest ones over the bounds. It
// returns when the record is on disk; those that come at the same time share
// the wait. One with the same id is replaced.
func (s *Store) Append(r Record) error {
	if r.ID == "" {
		return errors.New("keep a spin-up: it has no id")
	}
	r.bound()
	value, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("keep spin-up %s: %w", r.ID, err)
	}
	err = s.db.Batch(func(tx *bbolt.Tx) error {
		records := tx.Bucket(recordsBucket)
		if records.Get([]byte(r.ID)) == nil {
			if err := addCount(tx, 1); err != nil {
				return err
			}
		}
		if err := records.Put([]byte(r.ID), value); err != nil {
			return err
		}
		return s.trim(tx)
	})
	if err != nil {
		return fmt.Errorf("keep spin-up %s: %w", r.ID, err)
	}
	return nil
}

// trim removes the oldest records over the bounds.
func (s *Store) trim(tx *bbolt.Tx) error {
	count, err := readCount(tx)
	if err != nil {
		return err
	}
	over := count - s.keep.Count
	oldest := firstID(time.Now().Add(-s.keep.Age))
	removed := 0
	// Deleting below a cursor moves it; each round begins at the first.
	for {
		k, _ := tx.Bucket(recordsBucket).Cursor().First()
		if k == nil || removed >= over && string(k) >= oldest {
			break
		}
		if err := tx.Bucket(recordsBucket).Delete(slices.Clone(k)); err != nil {
			return err
		}
		removed++
	}
	return addCount(tx, -removed)
}

func readCount(tx *bbolt.Tx) (int, error) {
	var n int
	err := json.Unmarshal(tx.Bucket(metaBucket).Get(countKey), &n)
	return n, err
}

func addCount(tx *bbolt.Tx, delta int) error {
	n, err := readCount(tx)
	if err != nil || delta == 0 {
		return err
	}
	return tx.Bucket(metaBucket).Put(countKey, fmt.Append(nil, n+delta))
}

// Get returns one record, by its id or the beginning of it that no other has.
// holdfast.ErrNotFound.
func (s *Store) Get(id string) (Record, error) {
	var r Record
	err := s.db.View(func(tx *bbolt.Tx) error {
		records := tx.Bucket(recordsBucket)
		if records == nil { // to be read, and just begun
			return holdfast.ErrNotFound
		}
		c := records.Cursor()
		k, v := c.Seek([]byte(id))
		if k == nil || id == "" || len(k) < len(id) || string(k[:len(id)]) != id {
			return holdfast.ErrNotFound
		}
		if next, _ := c.Next(); string(k) != id && len(next) >= len(id) && string(next[:len(id)]) == id {
			return holdfast.WithHint(fmt.Errorf("several begin with %q: %w", id, holdfast.ErrNotFound), "name more of its id")
		}
		return json.Unmarshal(v, &r)
	})
	if err != nil {
		return Record{}, fmt.Errorf("spin-up %s: %w", id, err)
	}
	return r, nil
}

// Filter chooses records. The zero value is all.
type Filter struct {
	Since, Until time.Time // of their begin; the zero time is no bound
	Kind         Kind
	Image        string // with its tag or digest, or without for any
	Job          string
	Outcome      Outcome
	Slow         *Rules // only those with a phase that is slow by these
	Limit        int    // the newest n; 0 is all
}

// Takes reports whether the filter takes a record, but for Limit.
func (f Filter) Takes(r Record) bool {
	return !r.Begun.Before(f.Since) && (f.Until.IsZero() || r.Begun.Before(f.Until)) &&
		(f.Kind == "" || r.Kind == f.Kind) && f.takesImage(r.Image) &&
		(f.Job == "" || r.Job == f.Job) && (f.Outcome == "" || r.Outcome == f.Outcome) &&
		(f.Slow == nil || len(f.Slow.Slow(r)) > 0)
}

func (f Filter) takesImage(image string) bool {
	rest, ok := strings.CutPrefix(image, f.Image)
	return ok && (f.Image == "" || rest == "" || rest[0] == ':' || rest[0] == '@')
}

// List returns the records that the filter takes, newest first.
func (s *Store) List(f Filter) ([]Record, error) {
	var out []Record
	err := s.each(f, func(r Record) bool {
		out = append(out, r)
		return f.Limit <= 0 || len(out) < f.Limit
	})
	return out, err
}

// each gives the records that the filter takes to do, newest first, until that
// returns false. Writers go on meanwhile.
func (s *Store) each(f Filter, do func(Record) bool) error {
	err := s.db.View(func(tx *bbolt.Tx) error {
		records := tx.Bucket(recordsBucket)
		if records == nil { // to be read, and just begun
			return nil
		}
		c := records.Cursor()
		since := ""
		if !f.Since.IsZero() {
			since = firstID(f.Since)
		}
		k, v := c.Last()
		if !f.Until.IsZero() {
			if k, _ = c.Seek([]byte(firstID(f.Until))); k != nil {
				k, v = c.Prev()
			} else {
				k, v = c.Last()
			}
		}
		for ; k != nil && string(k) >= since; k, v = c.Prev() {
			var r Record
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("record %s: %w", k, err)
			}
			if f.Takes(r) && !do(r) {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the spin-up records: %w", err)
	}
	return nil
}

// openTimeout is how long the lock of a process that is just ending is waited
// for.
const openTimeout = 2 * time.Second

// openChecked opens the file after it has read all of it. boltfile.ErrDamaged,
// ErrInUse.
func openChecked(path string) (*bbolt.DB, error) {
	if err := checkFile(path); err != nil {
		return nil, err
	}
	db, err := openFile(path, bbolt.Options{})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucketIfNotExists(recordsBucket); err != nil {
			return err
		}
		meta, err := tx.CreateBucketIfNotExists(metaBucket)
		if err != nil {
			return err
		}
		if meta.Get(countKey) == nil {
			return meta.Put(countKey, []byte("0"))
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// openFile opens the file, with ErrInUse where another process has it.
func openFile(path string, o bbolt.Options) (*bbolt.DB, error) {
	o.Timeout = openTimeout
	db, err := boltfile.Open(path, o)
	return db, inUse(err)
}

// inUse is err, as ErrInUse where another process has the file.
func inUse(err error) error {
	if errors.Is(err, berrors.ErrTimeout) {
		return holdfast.WithHint(ErrInUse, "is an agent running with the same data directory?")
	}
	return err
}

// Stats groups the records that the filter takes; see Summarize.
func (s *Store) Stats(f Filter, by By, rules Rules) ([]Group, error) {
	records, err := s.List(f)
	if err != nil {
		return nil, err
	}
	return Summarize(records, by, rules), nil
}
