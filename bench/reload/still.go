package reload

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stillTick is the interval at which a CPU's thread wakes up.
	stillTick = 5 * time.Millisecond
	// stillFor is the time without a wake-up from which on a CPU counts as having stood
	// still. A busy CPU runs a thread that has slept within a few milliseconds.
	stillFor = 50 * time.Millisecond
)

// stills has the times in which a CPU ran no thread of this process, usually because
// the hypervisor had given it to another guest.
type stills struct {
	mu    sync.Mutex
	spans []span // since the load began
}

// watchStills watches each CPU of this process, with one thread for each, until end is
// closed. A CPU that it cannot watch counts as running.
func watchStills(began time.Time, end <-chan struct{}) (s *stills, done *sync.WaitGroup) {
	s, done = &stills{}, &sync.WaitGroup{}
	var may unix.CPUSet
	if unix.SchedGetaffinity(0, &may) != nil {
		return s, done
	}
	for cpu := range len(may) * 64 {
		if may.IsSet(cpu) {
			done.Go(func() { s.watch(cpu, began, end) })
		}
	}
	return s, done
}

func (s *stills) watch(cpu int, began time.Time, end <-chan struct{}) {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	var only unix.CPUSet
	only.Set(cpu)
	if unix.SchedSetaffinity(0, &only) != nil {
		return
	}
	last := time.Since(began)
	for {
		select {
		case <-end:
			return
		default:
		}
		tick := unix.NsecToTimespec(int64(stillTick))
		_ = unix.Nanosleep(&tick, nil) // one that was interrupted looks sooner
		now := time.Since(began)
		if now-last >= stillFor {
			s.mu.Lock()
			s.spans = append(s.spans, span{last, now - last})
			s.mu.Unlock()
		}
		last = now
	}
}

// all are the times by their beginning, those that overlap as one.
func (s *stills) all() []span {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.spans, func(a, b span) int { return int(a.at - b.at) })
	var out []span
	for _, n := range s.spans {
		if last := len(out) - 1; last >= 0 && n.at <= out[last].at+out[last].took {
			out[last].took = max(out[last].took, n.at+n.took-out[last].at)
			continue
		}
		out = append(out, n)
	}
	return out
}

// afterStill is the time that a machine needs after such a pause to catch up.
const afterStill = time.Second

// touched reports whether a request waited while the machine stood still or caught
// up. The times are in the order of all.
func touched(q request, stills []span) bool {
	due := time.Duration(q.due) * time.Microsecond
	end := due + time.Duration(q.wait)*time.Microsecond
	for _, s := range stills {
		if due < s.at+s.took+afterStill && end > s.at {
			return true
		}
	}
	return false
}
