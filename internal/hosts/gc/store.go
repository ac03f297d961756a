package gc

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/platform/boltfile"
)

// Store saves what a collector must know after a restart: the times of last use,
// the cycles, and the effect of deletions on spin-ups. The file is opened for
// each call only, so that a command can read it while an agent runs. Its methods
// may be called from any goroutine.
type Store struct {
	file boltfile.File
	log  *slog.Logger
	most int   // limit of saved uses
	full error // in tests: the error of every write, as on a full disk

	failing atomic.Bool   // the last write failed, and that was logged
	writing chan struct{} // semaphore of capacity 1 for writing cycles
	mu      sync.Mutex
	waiting []Cycle // cycles not yet written, oldest first
}

// NewStore returns the store of a data directory. It opens nothing.
func NewStore(dataDir string, log *slog.Logger) *Store {
	return &Store{
		file: boltfile.File{
			Path: filepath.Join(dataDir, "gc.db"), Name: "the garbage collector's records",
			Buckets: [][]byte{usesBucket, cyclesBucket, metaBucket}, Timeout: openTimeout, Log: log,
		},
		log: log, most: usesKept, writing: make(chan struct{}, 1),
	}
}

var (
	usesBucket   = []byte("uses")
	cyclesBucket = []byte("cycles")
	metaBucket   = []byte("meta")
	seenKey      = []byte("seen")
	blindKey     = []byte("blind")
	harmKey      = []byte("harm")
)

// Limits of the store.
const (
	openTimeout = 5 * time.Second // for other processes to close the file
	cyclesKept  = 500
	cyclesWait  = 50 // kept in memory if they cannot be written
	usesKept    = 200_000
)

// Uses are the known times of last use.
type Uses struct {
	Last map[string]time.Time // image ids, volumes by volumeKey, networks by networkKey
	// Seen is the time up to which events were followed.
	Seen time.Time
	// Blind is the end of the last period in which uses may have been missed.
	Blind time.Time
}

func volumeKey(name string) string { return "volume " + name }

func networkKey(id string) string { return "network " + id }

// lastUse returns the last use of the object with the key. An object with an unknown
// last use counts as used now.
func (u Uses) lastUse(key string, now time.Time) time.Time {
	if last, known := u.Last[key]; known {
		return last
	}
	return now
}

// update writes the file. If a damaged file is replaced, the times of last use
// are unknown, and unknown counts as used now.
func (s *Store) update(do func(*bbolt.Tx) error) error {
	err := s.file.Update(func(tx *bbolt.Tx) error {
		if s.full != nil {
			return s.full
		}
		return do(tx)
	})
	switch {
	case err != nil && !s.failing.Swap(true):
		s.log.Error("the garbage collector's records cannot be written; the collector goes on and tries again", "err", err)
	case err == nil && s.failing.Swap(false):
		s.log.Info("the garbage collector's records can be written again")
	}
	return err
}

// Uses returns the times of last use.
func (s *Store) Uses() (Uses, error) {
	u := Uses{Last: map[string]time.Time{}}
	err := s.file.View(func(tx *bbolt.Tx) error {
		u.Seen, u.Blind = readTime(tx.Bucket(metaBucket).Get(seenKey)), readTime(tx.Bucket(metaBucket).Get(blindKey))
		return tx.Bucket(usesBucket).ForEach(func(k, v []byte) error {
			u.Last[string(k)] = readTime(v)
			return nil
		})
	})
	return u, err
}

// Note adds uses and keeps the later time of each. If there is no space for new
// objects, the store sets Blind to now, as if uses had been missed.
func (s *Store) Note(u Uses) error {
	return s.update(func(tx *bbolt.Tx) error {
		uses, meta := tx.Bucket(usesBucket), tx.Bucket(metaBucket)
		room, dropped := s.most-uses.Stats().KeyN, 0
		for k, t := range u.Last {
			if uses.Get([]byte(k)) == nil {
				if room <= 0 {
					dropped++
					continue
				}
				room--
			}
			if err := putLater(uses, []byte(k), t); err != nil {
				return err
			}
		}
		if dropped > 0 {
			u.Blind = latest(u.Blind, time.Now())
			s.log.Warn("the list of last uses is full: all objects count as used now", "dropped", dropped, "kept", s.most)
		}
		return errors.Join(putLater(meta, seenKey, u.Seen), putLater(meta, blindKey, u.Blind))
	})
}

// Forget drops the uses of objects that no longer exist.
func (s *Store) Forget(there func(key string) bool) error {
	return s.update(func(tx *bbolt.Tx) error {
		uses := tx.Bucket(usesBucket)
		var gone [][]byte
		if err := uses.ForEach(func(k, _ []byte) error {
			if !there(string(k)) {
				gone = append(gone, append([]byte{}, k...))
			}
			return nil
		}); err != nil {
			return err
		}
		for _, k := range gone {
			if err := uses.Delete(k); err != nil {
				return err
			}
		}
		return nil
	})
}

// Harm returns the saved effect of deletions on spin-ups.
func (s *Store) Harm() (Harm, error) {
	var h Harm
	err := s.file.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(metaBucket).Get(harmKey)
		if v == nil {
			return nil
		}
		return json.Unmarshal(v, &h)
	})
	return h, err
}

// SaveHarm replaces the saved Harm.
func (s *Store) SaveHarm(h Harm) error {
	value, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return s.update(func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Put(harmKey, value) })
}

func timeKey(t time.Time) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(max(t.UnixNano(), 0)))
}

func readTime(b []byte) time.Time {
	if len(b) != 8 {
		return time.Time{}
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(b)))
}

// putLater writes a time unless a later one is stored.
func putLater(b *bbolt.Bucket, key []byte, t time.Time) error {
	if t.IsZero() || !t.After(readTime(b.Get(key))) {
		return nil
	}
	return b.Put(key, timeKey(t))
}

// merge adds to u the times of v that are later.
func (u *Uses) merge(v Uses) {
	if u.Last == nil {
		u.Last = maps.Clone(v.Last)
	}
	for k, t := range v.Last {
		u.Last[k] = latest(u.Last[k], t)
	}
	u.Seen, u.Blind = latest(u.Seen, v.Seen), latest(u.Blind, v.Blind)
}
