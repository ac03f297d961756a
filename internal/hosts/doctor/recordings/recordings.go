// Package recordings keeps recordings of where a host's CPU time went that the
// agent was asked for: the last few, a file each, of which `holdfast doctor diff`
// and `go tool pprof` can make use.
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

// Keep is how many are kept.
const Keep = 20

// Bounds of how long one may take.
const (
	MinFor = profile.MinFor
	MaxFor = time.Minute
)

// Recording is one that is kept.
type Recording struct {
	ID      string    `json:"id"` // sorts by time
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	Host    string    `json:"host"`
	Kernel  string    `json:"kernel"`
	CPUs    int       `json:"cpus"`
	// Container is the only one that was recorded; "" is the whole host.
	Container string  `json:"container,omitempty"`
	Samples   int64   `json:"samples"`
	Busy      float64 `json:"busy"` // share of all CPUs, 0 to 1
	Bytes     int64   `json:"bytes"`
}

// Book keeps recordings in a directory. Any goroutine may call its methods.
type Book struct {
	dir    string
	record func(ctx context.Context, length time.Duration, container string) (*profile.Profile, error)
	busy   sync.Mutex // while one is made
}

// New is a Book; it makes its directory with the first recording. record makes one.
func New(dir string, record func(ctx context.Context, length time.Duration, container string) (*profile.Profile, error)) *Book {
	return &Book{dir: dir, record: record}
}

// Record makes a recording, keeps it, and lets go of the oldest over Keep.
// holdfast.ErrBusy while another one is made; perf's errors.
func (b *Book) Record(ctx context.Context, length time.Duration, container string) (Recording, error) {
	if length < MinFor || length > MaxFor {
		return Recording{}, fmt.Errorf("a recording of %v: it has to be from %v to %v", length, MinFor, MaxFor)
	}
	if !b.busy.TryLock() {
		return Recording{}, fmt.Errorf("another recording is being made: %w", holdfast.ErrBusy)
	}
	defer b.busy.Unlock()
	p, err := b.record(ctx, length, container)
	if err != nil {
		return Recording{}, fmt.Errorf("record: %w", err)
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return Recording{}, fmt.Errorf("keep a recording: %w", err)
	}
	r := Recording{ID: idOf(p.Meta.Began), At: p.Meta.Began.UTC(), Seconds: p.Meta.Seconds, Host: p.Meta.Host, Kernel: p.Meta.Kernel, CPUs: p.Meta.CPUs,
		Container: container, Samples: p.Total(), Busy: p.Busy()}
	if err := b.write(p, &r); err != nil {
		return Recording{}, fmt.Errorf("keep a recording: %w", err)
	}
	return r, b.trim()
}

// idOf is a time as a file's name.
func idOf(t time.Time) string {
	return strings.Replace(t.UTC().Format("20060102-150405.000"), ".", "-", 1)
}

var idForm = regexp.MustCompile(`^[0-9]{8}-[0-9]{6}-[0-9]{3}$`)

func (b *Book) file(id string) string { return filepath.Join(b.dir, id+".pb.gz") }
func (b *Book) note(id string) string { return filepath.Join(b.dir, id+".json") }

// write writes the recording, and then the note by which it is listed.
func (b *Book) write(p *profile.Profile, r *Recording) error {
	f, err := profile.Create(b.file(r.ID))
	if err != nil {
		return err
	}
	defer f.Abort()
	if err := f.Commit(p); err != nil {
		return err
	}
	info, err := os.Stat(b.file(r.ID))
	if err != nil {
		return err
	}
	r.Bytes = info.Size()
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(b.note(r.ID), text, 0o600)
}

// ids are those that are there, the newest first: also of a recording that a crash
// left without its note.
func (b *Book) ids() ([]string, error) {
	all, err := os.ReadDir(b.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range all {
		if id, ok := strings.CutSuffix(e.Name(), ".pb.gz"); ok && idForm.MatchString(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	return ids, nil
}

func (b *Book) trim() error {
	ids, err := b.ids()
	for _, id := range ids[min(Keep, len(ids)):] {
		err = errors.Join(err, os.Remove(b.file(id)))
		if e := os.Remove(b.note(id)); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// List lists them, the newest first. One without a readable note is left out.
func (b *Book) List() ([]Recording, error) {
	ids, err := b.ids()
	if err != nil {
		return nil, fmt.Errorf("list recordings: %w", err)
	}
	var out []Recording
	for _, id := range ids {
		var r Recording
		text, err := os.ReadFile(b.note(id))
		if err == nil && json.Unmarshal(text, &r) == nil && r.ID == id {
			out = append(out, r)
		}
	}
	return out, nil
}

// Open reads one. holdfast.ErrNotFound, profile.ErrFormat.
func (b *Book) Open(id string) (*profile.Profile, error) {
	if !idForm.MatchString(id) {
		return nil, fmt.Errorf("recording %.40q: %w", id, holdfast.ErrNotFound)
	}
	p, err := profile.Open(b.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("recording %s: %w", id, holdfast.ErrNotFound)
	}
	return p, err
}
