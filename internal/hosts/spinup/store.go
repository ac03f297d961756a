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

// ErrInUse means that another process has the store open.
var ErrInUse = errors.New("another process has the spin-up records open")

// Keep limits the size and age of a Store.
type Keep struct {
	Count int           `yaml:"count"` // maximum number of records
	Age   time.Duration `yaml:"age"`   // maximum age
}

// DefaultKeep keeps a month, about 30 MB on disk.
func DefaultKeep() Keep { return Keep{Count: 10_000, Age: 30 * 24 * time.Hour} }

// Validate checks that the limits are in range.
func (k Keep) Validate() error {
	if k.Count < 1 || k.Count > 1_000_000 {
		return fmt.Errorf("count: %d is not between 1 and 1000000", k.Count)
	}
	if k.Age <= 0 {
		return fmt.Errorf("age: %v must be greater than 0", k.Age)
	}
	return nil
}

// Store keeps records on disk, in one file of bbolt. The program already contains bbolt
// through etcd. Its writes are atomic across crashes, its keys are ordered (here by
// time), and its lock excludes a second process. SQL would add a second database without
// a benefit, because all queries are over a range of time.
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

// OpenStore opens or creates the records at path. A damaged file is moved aside,
// to path with ".damaged" and a time, which is logged, and a new file is created.
// It may return ErrInUse.
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

// ReadStore opens the records at path read-only, for any number of processes at
// once: nothing is changed, not even records beyond a Keep, and Append fails. It
// may return holdfast.ErrNotFound or ErrInUse; a damaged file is an error.
func ReadStore(path string) (*Store, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		err = holdfast.ErrNotFound
	}
	if err == nil {
		err = checkFile(path)
	}
	if errors.Is(err, boltfile.ErrDamaged) {
		err = holdfast.WithHint(err, "an agent that starts with this file moves it aside and starts new records")
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

// Append saves records, all or none, and removes the oldest ones beyond the limits.
// It returns when the records are on disk; concurrent calls share the wait. A record
// with the same id is replaced.
func (s *Store) Append(list ...Record) error {
	return s.db.Batch(func(tx *bbolt.Tx) error {
		for _, r := range list {
			if err := put(tx, r.Bounded()); err != nil {
				return fmt.Errorf("save spin-up %s: %w", r.ID, err)
			}
		}
		return s.trim(tx)
	})
}

func put(tx *bbolt.Tx, r Record) error {
	if r.ID == "" {
		return errors.New("it has no id")
	}
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	records, id := tx.Bucket(recordsBucket), []byte(r.ID)
	if records.Get(id) == nil {
		if err := addCount(tx, 1); err != nil {
			return err
		}
	}
	return records.Put(id, value)
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
	// Deleting below a cursor moves it, so each round starts at the first.
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

// Get returns one record by its id or a unique prefix of it. It may return
// holdfast.ErrNotFound.
func (s *Store) Get(id string) (Record, error) {
	var r Record
	err := s.db.View(func(tx *bbolt.Tx) error {
		records := tx.Bucket(recordsBucket)
		if records == nil { // opened read-only and still empty
			return holdfast.ErrNotFound
		}
		c := records.Cursor()
		k, v := c.Seek([]byte(id))
		if k == nil || id == "" || len(k) < len(id) || string(k[:len(id)]) != id {
			return holdfast.ErrNotFound
		}
		if next, _ := c.Next(); string(k) != id && len(next) >= len(id) && string(next[:len(id)]) == id {
			return holdfast.WithHint(fmt.Errorf("several begin with %q: %w", id, holdfast.ErrNotFound), "give more digits of the id")
		}
		return json.Unmarshal(v, &r)
	})
	if err != nil {
		return Record{}, fmt.Errorf("spin-up %s: %w", id, err)
	}
	return r, nil
}

// Filter selects records. The zero value selects all.
type Filter struct {
	Since, Until time.Time // range of Begun; a zero time does not limit it
	Kind         Kind
	Image        string // with its tag or digest, or without for any
	Job          string
	Outcome      Outcome
	Experiment   string // only records with an arm of this experiment
	Slow         *Rules // only records with a phase that is slow by these rules
	Limit        int    // the newest n; 0: all
}

// Takes reports whether the filter, apart from Limit, selects a record.
func (f Filter) Takes(r Record) bool {
	return !r.Begun.Before(f.Since) && (f.Until.IsZero() || r.Begun.Before(f.Until)) &&
		(f.Kind == "" || r.Kind == f.Kind) && f.takesImage(r.Image) &&
		(f.Job == "" || r.Job == f.Job) && (f.Experiment == "" || r.Arms[f.Experiment] != "") && (f.Outcome == "" || r.Outcome == f.Outcome) &&
		(f.Slow == nil || len(f.Slow.Slow(r)) > 0)
}

func (f Filter) takesImage(image string) bool {
	rest, ok := strings.CutPrefix(image, f.Image)
	return ok && (f.Image == "" || rest == "" || rest[0] == ':' || rest[0] == '@')
}

// List returns the selected records, newest first.
func (s *Store) List(f Filter) ([]Record, error) {
	var out []Record
	err := s.each(f, func(r Record) bool {
		out = append(out, r)
		return f.Limit <= 0 || len(out) < f.Limit
	})
	return out, err
}

// each calls do with the selected records, newest first, until do returns false.
// Writers are not blocked.
func (s *Store) each(f Filter, do func(Record) bool) error {
	err := s.db.View(func(tx *bbolt.Tx) error {
		records := tx.Bucket(recordsBucket)
		if records == nil { // opened read-only and still empty
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

// openTimeout is the time for a process that exits to release its lock.
const openTimeout = 2 * time.Second

// openChecked reads the whole file, and then opens it. It may return
// boltfile.ErrDamaged or ErrInUse.
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

// openFile opens the file. It returns ErrInUse if another process has it open.
func openFile(path string, o bbolt.Options) (*bbolt.DB, error) {
	o.Timeout = openTimeout
	db, err := boltfile.Open(path, o)
	return db, inUse(err)
}

// inUse converts err to ErrInUse if another process has the file open.
func inUse(err error) error {
	if errors.Is(err, berrors.ErrTimeout) {
		return holdfast.WithHint(ErrInUse, "is an agent running with the same data directory?")
	}
	return err
}
