// Package memstore is the store of a single node (store/embedded) with its values in memory,
// for tests. It uses package time, so the fake time of testing/synctest works. It can lose
// its history, be set back, and simulate failures.
package memstore

import (
	"context"
	"encoding/json"
	"maps"
	"sync"

	"holdfast/internal/platform/store/embedded"
)

// Store is a embedded.Store in memory. Its goroutines are those of Watch, which end with their
// contexts, and one while calls are carried out.
type Store struct {
	*embedded.Store
	disk *disk

	mu    sync.Mutex
	fault fault
	over  chan struct{} // closed when the fault ends
}

// New returns an empty store that keeps its last history changes (at least 1) for
// watchers. A watcher that is further behind gets the difference to a list.
func New(history int) *Store {
	s := &Store{disk: &disk{}}
	var err error
	s.Store, err = embedded.New(s.disk, embedded.Config{History: max(history, 1), Before: s.before})
	if err != nil {
		panic(err) // an empty disk can be read
	}
	return s
}

// Forget drops the whole history, like a compaction: watchers that have not seen all
// of it get the difference to a list.
func (s *Store) Forget() {
	s.replace(func() {
		clear(s.disk.values["history"])
		meta := map[string]json.RawMessage{}
		if err := json.Unmarshal(s.disk.values["meta"]["store"], &meta); err != nil {
			panic(err) // the store has written it
		}
		meta["gone"] = meta["revision"]
		text, err := json.Marshal(meta)
		if err != nil {
			panic(err)
		}
		s.disk.values["meta"]["store"] = text
	})
}

// Backup returns a function that sets the store back to this moment, like a restore from a
// backup: the revision goes back too.
func (s *Store) Backup() (restore func()) {
	var then map[string]map[string][]byte
	s.replace(func() { then = clone(s.disk.values) })
	return func() { s.replace(func() { s.disk.values = clone(then) }) }
}

func (s *Store) replace(f func()) {
	if err := s.Replace(context.Background(), f); err != nil {
		panic(err) // it is neither closed nor on a disk that fails
	}
}

// disk is a embedded.Disk. The values are never changed in place.
type disk struct{ values map[string]map[string][]byte }

func (d *disk) Load(each func(bucket, key string, value []byte) error) error {
	for bucket, values := range d.values {
		for key, value := range values {
			if err := each(bucket, key, value); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *disk) Commit(changes []embedded.Change) error {
	for _, c := range changes {
		if d.values == nil {
			d.values = map[string]map[string][]byte{}
		}
		switch {
		case c.Value == nil:
			delete(d.values[c.Bucket], c.Key)
		case d.values[c.Bucket] == nil:
			d.values[c.Bucket] = map[string][]byte{c.Key: c.Value}
		default:
			d.values[c.Bucket][c.Key] = c.Value
		}
	}
	return nil
}

func (d *disk) Room() error  { return nil }
func (d *disk) Close() error { return nil }

func clone(values map[string]map[string][]byte) map[string]map[string][]byte {
	out := maps.Clone(values)
	for bucket := range out {
		out[bucket] = maps.Clone(out[bucket])
	}
	return out
}
