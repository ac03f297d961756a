package gc

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"

	"go.etcd.io/bbolt"

	"holdfast/internal/platform/boltfile"
)

// SaveCycle saves a cycle as far as it has come. If the write fails, the cycle is
// kept in memory and written with the next one or by WriteLate.
func (s *Store) SaveCycle(c Cycle) error {
	s.mu.Lock()
	s.waiting = append(slices.DeleteFunc(s.waiting, c.same), c)
	s.waiting = s.waiting[max(0, len(s.waiting)-cyclesWait):]
	s.mu.Unlock()
	return s.WriteLate()
}

func (c Cycle) same(other Cycle) bool { return c.Begun.Equal(other.Begun) }

// WriteLate writes the cycles that could not be written before.
func (s *Store) WriteLate() error {
	s.writing <- struct{}{} // one at a time: an older state never overwrites a newer one
	defer func() { <-s.writing }()
	s.mu.Lock()
	list := slices.Clone(s.waiting)
	s.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	if err := s.update(func(tx *bbolt.Tx) error {
		for _, c := range list {
			if err := putCycle(tx.Bucket(cyclesBucket), c); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(c Cycle) bool {
		return slices.ContainsFunc(list, func(w Cycle) bool { return c.same(w) && c.Took == w.Took && c.Ended == w.Ended })
	})
	return nil
}

func putCycle(cycles *bbolt.Bucket, c Cycle) error {
	value, err := json.Marshal(c)
	if err != nil {
		return err
	}
	for n := cycles.Stats().KeyN; n >= cyclesKept; n-- {
		k, _ := cycles.Cursor().First()
		if err := cycles.Delete(append([]byte{}, k...)); err != nil {
			return err
		}
	}
	return cycles.Put(timeKey(c.Begun), value)
}

// Cycles returns the last cycles, newest first. A limit of 0 returns all.
func (s *Store) Cycles(limit int) ([]Cycle, error) {
	s.mu.Lock()
	waiting := slices.Clone(s.waiting)
	s.mu.Unlock()
	list, err := s.written(limit)
	for _, c := range waiting {
		list = append([]Cycle{c}, slices.DeleteFunc(list, c.same)...)
	}
	sort.SliceStable(list, func(i, j int) bool { return list[j].Begun.Before(list[i].Begun) })
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list, err
}

// written returns the cycles on disk, like Cycles.
func (s *Store) written(limit int) ([]Cycle, error) {
	list := []Cycle{}
	err := s.file.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(cyclesBucket).Cursor()
		for k, v := c.Last(); k != nil && (limit <= 0 || len(list) < limit); k, v = c.Prev() {
			var one Cycle
			if err := json.Unmarshal(v, &one); err != nil {
				return fmt.Errorf("%w: a cycle: %w", boltfile.ErrDamaged, err)
			}
			list = append(list, one)
		}
		return nil
	})
	return list, err
}
