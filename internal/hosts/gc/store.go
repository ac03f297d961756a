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

// Store keeps on disk what a collector must know after a restart: when things
// were used last, what was done, and what that did to spin-ups. The file is
// opened for each call only, so that a command can read it beside an agent. Its
// methods may be called from any goroutine.
type Store struct {
	file boltfile.File
	log  *slog.Logger
	most int   // uses that are kept
	full error // in tests: every write fails with it, as on a full disk

	failing atomic.Bool   // the last write failed, which has been said
	writing chan struct{} // has one in it while cycles are written
	mu      sync.Mutex
	waiting []Cycle // that are not written, the oldest first
}

// NewStore is the store in a data directory; nothing is opened yet.
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

// Bounds of the store.
const (
	openTimeout = 5 * time.Second // for others to close it
	cyclesKept  = 500
	cyclesWait  = 50 // in memory, for the disk
	usesKept    = 200_000
)

// Uses is what is known of when things were used last.
type Uses struct {
	Last map[string]time.Time // image ids, volumes by volumeKey, networks by networkKey
	// Seen is up to when events were followed.
	Seen time.Time
	// Blind is until when uses may have been missed.
	Blind time.Time
}

func volumeKey(name string) string { return "volume " + name }

func networkKey(id string) string { return "network " + id }

// view reads the file; it does not call do where there is none.
func (s *Store) view(do func(*bbolt.Tx) error) error { return s.file.View(do) }

// update writes the file. When a damaged one is replaced, the times of last use are
// unknown, which counts as used now.
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
		s.log.Info("the garbage collector's records are written again")
	}
	return err
}

// Uses reads when things were used last.
func (s *Store) Uses() (Uses, error) {
	u := Uses{Last: map[string]time.Time{}}
	err := s.view(func(tx *bbolt.Tx) error {
		u.Seen, u.Blind = readTime(tx.Bucket(metaBucket).Get(seenKey)), readTime(tx.Bucket(metaBucket).Get(blindKey))
		return tx.Bucket(usesBucket).ForEach(func(k, v []byte) error {
			u.Last[string(k)] = readTime(v)
			return nil
		})
	})
	return u, err
}

// Note adds uses. Of a thing that was used later already, that stays. Those of new
// things, for which there is no room, count as missed: the store is blind until now.
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
			s.log.Warn("there is no room for when things were used: all count as used now", "dropped", dropped, "kept", s.most)
		}
		return errors.Join(putLater(meta, seenKey, u.Seen), putLater(meta, blindKey, u.Blind))
	})
}

// Forget drops the uses of what is not there any more.
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

// Harm reads what deletions did to spin-ups.
func (s *Store) Harm() (Harm, error) {
	var h Harm
	err := s.view(func(tx *bbolt.Tx) error {
		v := tx.Bucket(metaBucket).Get(harmKey)
		if v == nil {
			return nil
		}
		return json.Unmarshal(v, &h)
	})
	return h, err
}

// SaveHarm replaces it.
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

// putLater writes a time unless a later one is there.
func putLater(b *bbolt.Bucket, key []byte, t time.Time) error {
	if t.IsZero() || !t.After(readTime(b.Get(key))) {
		return nil
	}
	return b.Put(key, timeKey(t))
}

// merge adds what is later in v to u.
func (u *Uses) merge(v Uses) {
	if u.Last == nil {
		u.Last = maps.Clone(v.Last)
	}
	for k, t := range v.Last {
		u.Last[k] = latest(u.Last[k], t)
	}
	u.Seen, u.Blind = latest(u.Seen, v.Seen), latest(u.Blind, v.Blind)
}
