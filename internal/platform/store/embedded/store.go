package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Errors that come together with holdfast.ErrStore and a hint.
var (
	ErrInUse   = errors.New("the store is in use")       // Open: another process has the file open
	ErrNoSpace = errors.New("the store is out of space") // the disk has no room for a new record
)

// errClosed is the error of a call after Close.
var errClosed = fmt.Errorf("%w: it is closed", holdfast.ErrStore)

// Config configures a store. The zero Config is valid.
type Config struct {
	// History is the number of changes of session records that Watch and Follows can go
	// back. 0 is 5,000, and up to 50,000 of the last five minutes.
	History int
	// Timeout bounds each call; 0 is no limit besides the call's context.
	Timeout time.Duration
	// Before is called at the start of each call, and of each look of a Watch, with
	// watch set. It may delay or refuse the call, for tests of faults. nil: none.
	Before func(ctx context.Context, watch bool) error
}

// Change is a change of one value on disk. A nil Value deletes it.
type Change struct {
	Bucket, Key string
	Value       []byte
}

// Disk keeps the values of a Store. Its methods are called one at a time.
type Disk interface {
	// Load calls each with all values.
	Load(each func(bucket, key string, value []byte) error) error
	// Commit makes all changes or none. The error is ErrNoSpace if there is no room for
	// them; after any other error the content of the disk is not known.
	Commit([]Change) error
	// Room returns ErrNoSpace if there is no room for a new record.
	Room() error
	Close() error
}

// Store is a store.Store on a disk of this process.
type Store struct {
	cfg   Config
	disk  Disk
	past  store.Past
	lists store.Lists

	mu     sync.Mutex
	queue  []*call
	idle   chan struct{} // closed when the queue's goroutine ends; nil if there is none
	closed bool
	ended  chan struct{} // closed by Close

	dead context.Context // done when the disk has failed, with the failure as its cause
	fail context.CancelCauseFunc

	state *state // only the goroutine of the queue uses it
}

var _ store.Store = (*Store)(nil)

// New returns a store with the values of disk, which belongs to the store from then on.
// Each lease has its full TTL again.
func New(disk Disk, c Config) (*Store, error) {
	s := &Store{cfg: c, disk: disk, ended: make(chan struct{})}
	s.dead, s.fail = context.WithCancelCause(context.Background())
	s.state = newState()
	_, err := await(context.Background(), s, func(*state) (struct{}, error) { return struct{}{}, s.load() })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// closeTimeout is how long Close waits for calls on a disk that hangs.
const closeTimeout = 10 * time.Second

// Close waits for the calls in progress, ends the watches and closes the disk. Leases and
// records stay on disk. Later calls fail.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.ended)
	idle := s.idle
	s.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-time.After(closeTimeout):
			return fmt.Errorf("close the store of ownership: its disk did not answer within %v", closeTimeout)
		}
	}
	for _, l := range s.state.leases {
		l.timer.Stop()
	}
	return errors.Join(s.Err(), s.disk.Close())
}

// Failed is closed when the disk has failed. All calls return an error then; Err has the
// cause. Only a new process can be sure of what is on disk.
func (s *Store) Failed() <-chan struct{} { return s.dead.Done() }

// Err is the cause of the failure, with a hint, or nil.
func (s *Store) Err() error { return context.Cause(s.dead) }

// Replace commits all earlier calls, calls replace, which may change the content of the
// disk, and reads the disk again. Tests restore a backup with it.
func (s *Store) Replace(ctx context.Context, replace func()) error {
	_, err := await(ctx, s, func(*state) (struct{}, error) {
		if err := s.commit(); err != nil {
			return struct{}{}, err
		}
		replace()
		if err := s.load(); err != nil {
			return struct{}{}, err
		}
		s.seen()
		return struct{}{}, nil
	})
	return err
}
