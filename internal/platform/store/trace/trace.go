// Package trace records a node's calls to its store: a line of JSON before each call
// and another after it, in one file, with the times of CLOCK_BOOTTIME. A call that
// its process did not survive has no second line. It is a debugging aid: from the
// files of all nodes package test/check verifies the store's guarantees.
package trace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/store"
)

// maxBytes is the largest size of a file; after that nothing more is written.
const maxBytes = 1 << 30

// line is one line of the file.
type line struct {
	Node holdfast.NodeID `json:"node"`
	Life int64           `json:"life"` // when the store was opened: distinguishes processes
	Call int64           `json:"call"` // number of the call in this life
	At   int64           `json:"at"`   // nanoseconds since the machine booted

	Op      string        `json:"op,omitempty"` // in the line before a call
	Lease   store.LeaseID `json:"lease,omitempty"`
	Records []Record      `json:"records,omitempty"` // before: the call's records; after: the present ones

	Result string `json:"result,omitempty"` // in the line after a call
}

// Record is one version of a session's record, or a key if it has no revision.
type Record struct {
	Key      holdfast.SessionKey `json:"key"`
	Epoch    holdfast.Epoch      `json:"epoch,omitempty"`
	Revision holdfast.Revision   `json:"revision,omitempty"`
}

func recordOf(o holdfast.Owner) Record { return Record{o.Key, o.Epoch, o.Revision} }

// Store is a store.Store that records its calls. It passes nodes' records, lists and
// watches through without recording them.
type Store struct {
	store.Store
	node holdfast.NodeID
	log  *slog.Logger
	life int64

	mu    sync.Mutex
	file  *os.File // nil after a failed write
	calls int64
	bytes int64
}

// Open makes the file, with mode 0600, or appends to it.
func Open(path string, node holdfast.NodeID, s store.Store, log *slog.Logger) (*Store, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store.trace_file: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store.trace_file: %w", err), f.Close())
	}
	return &Store{Store: s, node: node, log: log, life: int64(boottime.Now()), file: f, bytes: fi.Size()}, nil
}

// Close closes the file, not the store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.file
	s.file = nil
	if f == nil {
		return nil
	}
	return f.Close()
}

// write writes one line with one write(2), so that a kill leaves complete lines. s.mu
// is held.
func (s *Store) write(l line) {
	if s.file == nil {
		return
	}
	l.Node, l.Life, l.At = s.node, s.life, int64(boottime.Now())
	text, err := json.Marshal(l)
	if err == nil && s.bytes > maxBytes {
		err = fmt.Errorf("it has %d bytes", s.bytes)
	}
	if err == nil {
		_, err = s.file.Write(append(text, '\n'))
	}
	s.bytes += int64(len(text)) + 1
	if err != nil {
		s.log.Error("the store's trace cannot be written any more", "err", err)
		s.file.Close()
		s.file = nil
	}
}

// begin records the begin of a call and returns its number.
func (s *Store) begin(op string, lease store.LeaseID, records ...Record) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.write(line{Call: s.calls, Op: op, Lease: lease, Records: records})
	return s.calls
}

// The operations and results as the file names them.
const (
	Grant     = "grant"
	KeepAlive = "keepalive"
	Revoke    = "revoke"
	Claim     = "claim"
	Advance   = "advance"
	Release   = "release"
	Get       = "get"

	OK        = "ok"
	Taken     = "taken"
	Stale     = "stale"
	Order     = "order"
	LeaseGone = "lease_gone"
	NotFound  = "not_found"
	Unknown   = "unknown" // the call may have taken effect or not
)

func result(err error) string {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, store.ErrTaken):
		return Taken
	case errors.Is(err, store.ErrStale):
		return Stale
	case errors.Is(err, store.ErrOrder):
		return Order
	case errors.Is(err, store.ErrLeaseGone):
		return LeaseGone
	case errors.Is(err, holdfast.ErrNotFound):
		return NotFound
	}
	return Unknown
}

func (s *Store) end(call int64, err error, lease store.LeaseID, records ...Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(line{Call: call, Result: result(err), Lease: lease, Records: records})
}

// Grant implements store.Store.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	n := s.begin(Grant, 0)
	id, got, err := s.Store.Grant(ctx, ttl)
	s.end(n, err, id)
	return id, got, err
}

// KeepAlive implements store.Store.
func (s *Store) KeepAlive(ctx context.Context, id store.LeaseID) error {
	n := s.begin(KeepAlive, id)
	err := s.Store.KeepAlive(ctx, id)
	s.end(n, err, id)
	return err
}

// Revoke implements store.Store.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	n := s.begin(Revoke, id)
	err := s.Store.Revoke(ctx, id)
	s.end(n, err, id)
	return err
}

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, o holdfast.Owner, id store.LeaseID) (holdfast.Owner, error) {
	n := s.begin(Claim, id, Record{Key: o.Key})
	got, err := s.Store.Claim(ctx, o, id)
	s.end(n, err, id, found(got)...)
	return got, err
}

// Advance implements store.Store.
func (s *Store) Advance(ctx context.Context, o holdfast.Owner) (holdfast.Owner, error) {
	n := s.begin(Advance, 0, recordOf(o))
	got, err := s.Store.Advance(ctx, o)
	s.end(n, err, 0, found(got)...)
	return got, err
}

// Release implements store.Store. After the call Records are those deleted.
func (s *Store) Release(ctx context.Context, owners ...holdfast.Owner) ([]holdfast.SessionKey, error) {
	var given, deleted []Record
	for _, o := range owners {
		given = append(given, recordOf(o))
	}
	n := s.begin(Release, 0, given...)
	keys, err := s.Store.Release(ctx, owners...)
	for _, k := range keys {
		deleted = append(deleted, Record{Key: k})
	}
	s.end(n, err, 0, deleted...)
	return keys, err
}

// Suspend implements store.Store. The trace has it as a release.
func (s *Store) Suspend(ctx context.Context, o holdfast.Owner, text string) error {
	n := s.begin(Release, 0, recordOf(o))
	err := s.Store.Suspend(ctx, o, text)
	switch {
	case err == nil:
		s.end(n, nil, 0, Record{Key: o.Key})
	case errors.Is(err, store.ErrStale):
		s.end(n, nil, 0)
	default:
		s.end(n, err, 0)
	}
	return err
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	n := s.begin(Get, 0, Record{Key: key})
	got, err := s.Store.Get(ctx, key)
	s.end(n, err, 0, found(got)...)
	return got, err
}

// found is the record in an answer, or nil.
func found(o holdfast.Owner) []Record {
	if o.Revision == 0 {
		return nil
	}
	return []Record{recordOf(o)}
}
