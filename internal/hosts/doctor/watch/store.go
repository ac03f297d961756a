package watch

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/platform/boltfile"
)

// FileName is the store's file in the data directory.
const FileName = "doctor.db"

// Store keeps events and facts on disk. The file is open only during each call, so that a
// command can read it while an agent runs. Its methods may be called from any goroutine.
type Store struct {
	file boltfile.File
	keep time.Duration
}

// NewStore returns the store of a data directory. It opens nothing yet.
func NewStore(dataDir string, keep time.Duration, log *slog.Logger) *Store {
	return &Store{
		file: boltfile.File{
			Path: filepath.Join(dataDir, FileName), Name: "the doctor's history",
			Buckets: [][]byte{eventsBucket, samplesBucket}, Timeout: storeTimeout, Log: log,
		},
		keep: keep,
	}
}

var (
	eventsBucket  = []byte("events")
	samplesBucket = []byte("samples")
)

// Bounds of the store. A sample uses about 2 KiB. One day of one-minute samples and six
// days of ten-minute samples are 2,300 samples.
const (
	storeTimeout = 2 * time.Second // for another process to close the file
	eventsKept   = 20_000
	samplesKept  = 20_000
	wholeFor     = 24 * time.Hour   // age up to which samples stay as recorded
	coarse       = 10 * time.Minute // period of merged samples
	compactEvery = time.Hour
)

// AddEvents stores events and removes the oldest ones beyond the bounds.
func (s *Store) AddEvents(events []Event) error {
	return s.file.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(eventsBucket)
		for _, e := range events {
			if err := put(b, e.At, e); err != nil {
				return err
			}
		}
		return trim(b, time.Now().Add(-s.keep), eventsKept)
	})
}

// AddSample stores a sample.
func (s *Store) AddSample(one Sample) error {
	return s.file.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(samplesBucket)
		if err := put(b, one.At, one); err != nil {
			return err
		}
		return trim(b, time.Now().Add(-s.keep), samplesKept)
	})
}

// storedSample is a sample with its key.
type storedSample struct {
	key    []byte
	sample Sample
}

// Compact merges the samples that are older than a day at the time now.
func (s *Store) Compact(now time.Time) error {
	return s.file.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(samplesBucket)
		end := now.Add(-wholeFor).Truncate(coarse)
		var old []storedSample
		c := b.Cursor()
		for k, v := c.First(); k != nil && keyTime(k).Before(end); k, v = c.Next() {
			x := storedSample{key: slices.Clone(k)}
			if err := json.Unmarshal(v, &x.sample); err != nil {
				return fmt.Errorf("%w: a sample: %w", boltfile.ErrDamaged, err)
			}
			old = append(old, x)
		}
		period := func(x storedSample) time.Time { return x.sample.At.Truncate(coarse) }
		for len(old) > 0 {
			n := 1
			for n < len(old) && period(old[n]).Equal(period(old[0])) {
				n++
			}
			if err := mergeStored(b, old[:n]); err != nil {
				return err
			}
			old = old[n:]
		}
		return nil
	})
}

// mergeStored replaces samples of one period by one.
func mergeStored(b *bbolt.Bucket, stored []storedSample) error {
	if len(stored) == 1 {
		return nil
	}
	var samples []Sample
	for _, x := range stored {
		if err := b.Delete(x.key); err != nil {
			return err
		}
		samples = append(samples, x.sample)
	}
	return put(b, samples[0].At, merge(samples))
}

// History returns the values since the given time, the newest first, at most limit events
// and limit samples (0: all).
func (s *Store) History(since time.Time, limit int) (History, error) {
	h := History{Events: []Event{}, Samples: []Sample{}}
	err := s.file.View(func(tx *bbolt.Tx) (err error) {
		if h.Events, err = newest[Event](tx.Bucket(eventsBucket), since, limit); err != nil {
			return err
		}
		h.Samples, err = newest[Sample](tx.Bucket(samplesBucket), since, limit)
		return err
	})
	return h, err
}

// newest returns the values since the given time, the newest first.
func newest[T any](b *bbolt.Bucket, since time.Time, limit int) ([]T, error) {
	values, c := []T{}, b.Cursor()
	for k, v := c.Last(); k != nil && !keyTime(k).Before(since) && (limit <= 0 || len(values) < limit); k, v = c.Prev() {
		var value T
		if err := json.Unmarshal(v, &value); err != nil {
			return values, fmt.Errorf("%w: %w", boltfile.ErrDamaged, err)
		}
		values = append(values, value)
	}
	return values, nil
}

// put stores a value under a key of its time and a unique number.
func put(b *bbolt.Bucket, at time.Time, v any) error {
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	key := binary.BigEndian.AppendUint64(nil, uint64(max(at.UnixNano(), 0)))
	return b.Put(binary.BigEndian.AppendUint32(key, uint32(n)), value)
}

func keyTime(k []byte) time.Time {
	if len(k) < 8 {
		return time.Time{}
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(k)))
}

// trim removes the values older than oldest, and the oldest values beyond the number
// most.
func trim(b *bbolt.Bucket, oldest time.Time, most int) error {
	over := 0
	if b.Sequence()%100 == 0 { // counting walks over all pages
		over = b.Stats().KeyN - most
	}
	for {
		k, _ := b.Cursor().First() // deleting moves a cursor
		if k == nil || over <= 0 && !keyTime(k).Before(oldest) {
			return nil
		}
		if err := b.Delete(slices.Clone(k)); err != nil {
			return err
		}
		over--
	}
}
