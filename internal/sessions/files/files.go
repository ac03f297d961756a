package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/linux/inroot"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/metric"
)

// Place is where a session's files are.
type Place struct {
	PID  int             // of the container's init
	Left <-chan struct{} // closed when the session begins to end
	// Same reports whether the init still lives, so that PID is its pid.
	Same func() bool
	// Exec runs Main in the container, as its root user and with its streams, and returns its
	// exit code. It is called for sandboxes of gVisor only.
	Exec func(ctx context.Context, in io.Reader, out io.Writer) (int, error)
}

// Files has the files of the sessions of a node. Its methods may be called from any
// goroutine. Paths are absolute and the container's. All methods return errors that wrap
// holdfast.ErrNotFound for a session without a container here and for a missing file,
// holdfast.ErrBusy if too many calls are in progress, holdfast.ErrBadFile for a file that
// does not allow the operation, holdfast.ErrExists and holdfast.ErrNoSpace.
type Files struct {
	locate func(holdfast.SessionKey) (Place, error)

	mu      sync.Mutex
	calls   slots
	watches slots
	idle    map[holdfast.SessionKey]*helper

	done         *prometheus.CounterVec
	read, writes prometheus.Counter // bytes
}

// New returns the files of the sessions that locate finds. The error of locate wraps
// holdfast.ErrNotFound for a session without a container on this node.
func New(locate func(holdfast.SessionKey) (Place, error), r metric.Registry) *Files {
	f := &Files{
		locate: locate, idle: map[holdfast.SessionKey]*helper{},
		calls: newSlots(maxOfSession, maxOfNode), watches: newSlots(maxWatchesSession, maxWatchesNode),
		done:   r.CounterVec("holdfast_files_calls_total", "Calls about files of sessions that have ended, by result.", "result"),
		read:   r.Counter("holdfast_files_read_bytes_total", "Bytes that were read from files of sessions."),
		writes: r.Counter("holdfast_files_written_bytes_total", "Bytes that were written to files of sessions."),
	}
	metric.Start(f.done, "ok", "refused", "failed")
	metric.GaugeFunc(r, "holdfast_files_calls_running", "Calls about files of sessions that are in progress, without watches.", func() int { return f.count(&f.calls) })
	metric.GaugeFunc(r, "holdfast_files_watches", "Watches of files of sessions.", func() int { return f.count(&f.watches) })
	return f
}

func (f *Files) count(s *slots) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return s.node
}

// slots count what is in progress.
type slots struct {
	ofSession map[holdfast.SessionKey]int
	node      int
	maxOne    int
	maxAll    int
}

func newSlots(one, all int) slots {
	return slots{ofSession: map[holdfast.SessionKey]int{}, maxOne: one, maxAll: all}
}

// take takes a slot, and returns the function that gives it back.
func (f *Files) take(s *slots, key holdfast.SessionKey, what string) (func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.ofSession[key] >= s.maxOne {
		return nil, fmt.Errorf("%d %s of session %s are in progress: %w", s.maxOne, what, key, holdfast.ErrBusy)
	}
	if s.node >= s.maxAll {
		return nil, fmt.Errorf("%d %s of this node are in progress: %w", s.maxAll, what, holdfast.ErrBusy)
	}
	s.ofSession[key]++
	s.node++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		s.node--
		if s.ofSession[key]--; s.ofSession[key] == 0 {
			delete(s.ofSession, key)
		}
	}, nil
}

// tree has the files of one container, for one call.
type tree struct {
	root     *inroot.Root
	seen     func(bytes int) // written
	inMemory atomic.Int64    // bytes written to a tmpfs
}

// open opens the files of a session from outside its container.
func (f *Files) open(key holdfast.SessionKey, place Place) (*tree, error) {
	root, err := inroot.Open(place.PID)
	switch {
	case !place.Same():
		err = fmt.Errorf("session %s has no running container: %w", key, holdfast.ErrNotFound)
	case errors.Is(err, inroot.ErrHostRoot):
		err = holdfast.WithHint(&Error{fmt.Sprintf("session %s runs in a virtual machine, which keeps its files to itself", key), holdfast.ErrBadFile},
			"`holdfast session exec -i` can run tar in the container")
	case errors.Is(err, inroot.ErrUnsupported):
		err = holdfast.WithHint(&Error{"files of sessions need openat2", holdfast.ErrBadFile}, "Linux 5.6 or later has it")
	}
	if err != nil {
		if root != nil {
			root.Close()
		}
		return nil, err
	}
	return &tree{root: root, seen: f.hasWritten}, nil
}

// sandboxed reports whether a process is a sandbox of gVisor, by its own name for itself.
func sandboxed(pid int) bool {
	args, err := proc.Host.Cmdline(pid)
	return err == nil && len(args) > 0 && args[0] == "runsc-sandbox"
}

// note counts a call.
func (f *Files) note(err error) {
	result := "ok"
	switch {
	case err == nil:
	case errors.Is(err, holdfast.ErrNotFound), errors.Is(err, holdfast.ErrBadFile), errors.Is(err, holdfast.ErrBusy), errors.Is(err, holdfast.ErrExists):
		result = "refused"
	default:
		result = "failed"
	}
	f.done.WithLabelValues(result).Inc()
}

func (f *Files) hasRead(n int)    { f.read.Add(float64(n)) }
func (f *Files) hasWritten(n int) { f.writes.Add(float64(n)) }

// owner returns the host's ids for those of the container.
func (t *tree) owner(uid, gid int) (int, int, error) {
	u, ok1 := t.root.UIDs.Outside(uid)
	g, ok2 := t.root.GIDs.Outside(gid)
	if !ok1 || !ok2 {
		return 0, 0, &Error{fmt.Sprintf("the container has no user %d or no group %d", uid, gid), holdfast.ErrBadFile}
	}
	return u, g, nil
}
