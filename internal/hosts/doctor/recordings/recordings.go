// Package recordings stores recordings of the CPU time of a host that the agent was asked
// to make. It keeps the last few, one file each. `holdfast doctor diff` and `go tool
// pprof` can read them.
package recordings

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/profile"
)

// DirName is the directory in an agent's data directory.
const DirName = "recordings"

// Keep is the number of recordings that are kept.
const Keep = 20

// Bounds of a recording.
const (
	MinFor  = profile.MinFor
	MaxFor  = time.Minute
	MaxWait = 2 * time.Minute // for the start of a container
)

// Request asks for a recording.
type Request struct {
	For       time.Duration // MinFor to MaxFor
	Container string        // by name or id; "" is the whole host
	// Wait, if it is over 0, is the longest wait for the start of the container, which is
	// recorded from its first instruction.
	Wait time.Duration
}

// Validate checks the bounds.
func (q Request) Validate() error {
	switch {
	case q.For < MinFor || q.For > MaxFor:
		return fmt.Errorf("a recording of %v: it must be from %v to %v", q.For, MinFor, MaxFor)
	case q.Wait != 0 && (q.Wait < MinFor || q.Wait > MaxWait):
		return fmt.Errorf("a wait of %v: it must be from %v to %v", q.Wait, MinFor, MaxWait)
	case q.Wait != 0 && q.Container == "":
		return errors.New("a wait for a start needs the name of the container")
	}
	return nil
}

// Recording describes a stored recording.
type Recording struct {
	ID      string    `json:"id"` // sorts by time
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	Host    string    `json:"host"`
	Kernel  string    `json:"kernel"`
	CPUs    int       `json:"cpus"`
	// Container is the container that was recorded; "" is the whole host.
	Container string `json:"container,omitempty"`
	// FromStart: from the container's first instruction.
	FromStart bool    `json:"from_start,omitempty"`
	Samples   int64   `json:"samples"`
	Busy      float64 `json:"busy"` // share of all CPUs, 0 to 1
	Bytes     int64   `json:"bytes"`
}

// Store keeps recordings in a directory. Its methods may be called from any goroutine.
type Store struct {
	dir    string
	record func(ctx context.Context, q Request) (*profile.Profile, error)
	busy   sync.Mutex // held while a recording is made
}

// New returns a Store. It creates its directory with the first recording. record makes a
// recording.
func New(dir string, record func(ctx context.Context, q Request) (*profile.Profile, error)) *Store {
	return &Store{dir: dir, record: record}
}

// Record makes and stores a recording, and removes the oldest ones beyond Keep. It
// returns holdfast.ErrBusy while another recording is made, or the error of record.
func (s *Store) Record(ctx context.Context, q Request) (Recording, error) {
	if err := q.Validate(); err != nil {
		return Recording{}, err
	}
	if !s.busy.TryLock() {
		return Recording{}, fmt.Errorf("another recording is being made: %w", holdfast.ErrBusy)
	}
	defer s.busy.Unlock()
	p, err := s.record(ctx, q)
	if err != nil {
		return Recording{}, fmt.Errorf("record: %w", err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return Recording{}, fmt.Errorf("store a recording: %w", err)
	}
	r := Recording{ID: idOf(p.Meta.Began), At: p.Meta.Began.UTC(), Seconds: p.Meta.Seconds, Host: p.Meta.Host, Kernel: p.Meta.Kernel, CPUs: p.Meta.CPUs,
		Container: q.Container, FromStart: q.Wait > 0, Samples: p.Total(), Busy: p.Busy()}
	if err := s.write(p, &r); err != nil {
		return Recording{}, fmt.Errorf("store a recording: %w", err)
	}
	return r, s.trim()
}

// idOf formats a time as a file name.
func idOf(t time.Time) string {
	return strings.Replace(t.UTC().Format("20060102-150405.000"), ".", "-", 1)
}

var idForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]{8}-[0-9]{6}-[0-9]{3}$`) })

func (s *Store) file(id string) string { return filepath.Join(s.dir, id+".pb.gz") }
func (s *Store) note(id string) string { return filepath.Join(s.dir, id+".json") }

// write writes the recording, and then the description by which it is listed.
func (s *Store) write(p *profile.Profile, r *Recording) error {
	f, err := profile.Create(s.file(r.ID))
	if err != nil {
		return err
	}
	defer f.Abort()
	if err := f.Commit(p); err != nil {
		return err
	}
	info, err := os.Stat(s.file(r.ID))
	if err != nil {
		return err
	}
	r.Bytes = info.Size()
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(s.note(r.ID), text, 0o600)
}

// ids returns the ids of the recordings, the newest first. It includes recordings that a
// crash left without a description.
func (s *Store) ids() ([]string, error) {
	all, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range all {
		if id, ok := strings.CutSuffix(e.Name(), ".pb.gz"); ok && idForm().MatchString(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	return ids, nil
}

func (s *Store) trim() error {
	ids, err := s.ids()
	for _, id := range ids[min(Keep, len(ids)):] {
		err = errors.Join(err, os.Remove(s.file(id)))
		if e := os.Remove(s.note(id)); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// List returns the recordings, the newest first. Recordings without a readable
// description are left out.
func (s *Store) List() ([]Recording, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, fmt.Errorf("list recordings: %w", err)
	}
	var out []Recording
	for _, id := range ids {
		var r Recording
		text, err := os.ReadFile(s.note(id))
		if err == nil && json.Unmarshal(text, &r) == nil && r.ID == id {
			out = append(out, r)
		}
	}
	return out, nil
}

// Open reads a recording. It returns holdfast.ErrNotFound or profile.ErrFormat.
func (s *Store) Open(id string) (*profile.Profile, error) {
	if !idForm().MatchString(id) {
		return nil, fmt.Errorf("recording %.40q: %w", id, holdfast.ErrNotFound)
	}
	p, err := profile.Open(s.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("recording %s: %w", id, holdfast.ErrNotFound)
	}
	return p, err
}
