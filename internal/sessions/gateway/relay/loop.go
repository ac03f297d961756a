package relay

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sizes of a loop. A side that has more to read than turns buffers moves to the
// end of the queue, so that one stream cannot starve the others.
const (
	eventBatch = 256
	turns      = 8
	spareKept  = 8 // spare buffers for slow readers
)

// A loop with at least manyEvents at a wait, on average over about averageOver waits, keeps its thread
// until there are under fewEvents.
const (
	manyEvents  = 4.0
	fewEvents   = 2.0
	averageOver = 32

	// busyWait is the longest wait of such a loop, in milliseconds. An average without events soon ends it.
	busyWait = 1
)

// command makes the loop serve a pair, end it, or export all pairs.
type command struct {
	pair   *socketPair
	end    bool
	export *sync.WaitGroup // of what is exported; its count has one for the command
}

// loop serves pairs of sockets on one goroutine. Only that goroutine uses the
// fields below epoll.
type loop struct {
	ended func(pair, Spec)

	mu       sync.Mutex // guards the next three
	inbox    []command
	isOpen   bool
	stopping bool

	epoll, wake int // wake is an eventfd

	slots  []*side // by the index that epoll returns
	free   []int32
	gen    int32 // tells the current side of a slot from earlier ones
	pairs  map[*socketPair]struct{}
	queue  []*side // sides with work but without a new event
	timed  map[*socketPair]time.Time
	next   time.Time // the earliest time in timed, or before it
	buf    []byte
	events float64 // of a wait, on average
	pinned bool    // the loop has a thread of its own
	spare  [][]byte
	leaves bool // stop was received
}

// open creates the descriptors of the loop.
func (l *loop) open() (err error) {
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(l.epoll)
		return fmt.Errorf("eventfd: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}
	if err = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.wake, &ev); err != nil {
		unix.Close(l.wake)
		unix.Close(l.epoll)
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	l.pairs = map[*socketPair]struct{}{}
	l.timed = map[*socketPair]time.Time{}
	l.buf = make([]byte, bufferSize)
	l.mu.Lock()
	l.isOpen, l.stopping = true, false
	l.mu.Unlock()
	l.leaves = false
	return nil
}

// close closes the descriptors; post refuses from then on.
func (l *loop) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isOpen = false
	unix.Close(l.wake)
	unix.Close(l.epoll)
}

// post hands a command to the loop. It returns false if the loop has ended.
func (l *loop) post(c command) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isOpen {
		return false
	}
	l.inbox = append(l.inbox, c)
	if len(l.inbox) == 1 {
		l.ring()
	}
	return true
}

// stop makes run return when all pairs have left.
func (l *loop) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOpen {
		l.stopping = true
		l.ring()
	}
}

// ring wakes the loop. A full counter (EAGAIN) means that the wake-up is
// already pending.
func (l *loop) ring() {
	one := [8]byte{1}
	_, _ = unix.Write(l.wake, one[:])
}

// run serves until stop was called and all pairs have ended, or until epoll
// fails.
func (l *loop) run() error {
	defer l.drop()
	defer l.unpin()
	events := make([]unix.EpollEvent, eventBatch)
	for !l.leaves || len(l.pairs) > 0 {
		n, err := l.wait(events)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("epoll_wait: %w", err)
		}
		for i := range max(n, 0) {
			if ev := &events[i]; ev.Fd < 0 {
				l.takeInbox()
			} else if s := l.slots[ev.Fd]; s != nil && s.gen == ev.Pad {
				s.event(ev.Events)
			}
		}
		l.runQueue()
		l.expire()
		l.pin(max(n, 0))
	}
	return nil
}

// wait waits for events. A loop that is pinned keeps its processor meanwhile: Go's monitor otherwise looks
// for a processor in a system call every 20 µs, and starts another thread for it. Signals end the wait, also
// that of a garbage collection that stops this thread.
func (l *loop) wait(events []unix.EpollEvent) (int, error) {
	timeout := l.timeout()
	if !l.pinned {
		return unix.EpollWait(l.epoll, events, timeout)
	}
	if timeout < 0 || timeout > busyWait {
		timeout = busyWait
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(timeout), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// pin keeps the loop on its thread while it is busy: otherwise the goroutine may continue on another
// thread after each wait. A locked thread takes longer to wake, for which the messages of a single
// connection would wait.
func (l *loop) pin(events int) {
	l.events += (float64(events) - l.events) / averageOver
	switch {
	case !l.pinned && l.events >= manyEvents:
		runtime.LockOSThread()
		l.pinned = true
	case l.events < fewEvents:
		l.unpin()
	}
}

func (l *loop) unpin() {
	if l.pinned {
		runtime.UnlockOSThread()
		l.pinned = false
	}
}

// drop closes the remaining pairs when the loop ends.
func (l *loop) drop() {
	l.close()
	l.mu.Lock()
	inbox := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, c := range inbox {
		switch {
		case c.export != nil:
			c.export.Done()
		case !c.end:
			l.pairs[c.pair] = struct{}{}
		}
	}
	for p := range l.pairs {
		p.close()
	}
	l.slots, l.free, l.queue, l.spare = nil, nil, nil, nil
}

func (l *loop) takeInbox() {
	var count [8]byte
	_, _ = unix.Read(l.wake, count[:])
	l.mu.Lock()
	inbox, stopping := l.inbox, l.stopping
	l.inbox = nil
	l.mu.Unlock()
	for _, c := range inbox {
		switch {
		case c.export != nil:
			l.export(c.export)
		case c.end:
			c.pair.beginClose()
		default:
			c.pair.start()
		}
	}
	if stopping && !l.leaves {
		l.leaves = true
		for p := range l.pairs {
			p.beginClose()
		}
	}
}

// register gives the side a slot and adds its socket to epoll once,
// edge-triggered, for all events (epoll(7)).
func (l *loop) register(s *side) error {
	if n := len(l.free); n > 0 {
		s.slot = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		s.slot = int32(len(l.slots))
		l.slots = append(l.slots, nil)
	}
	l.gen++
	s.gen = l.gen
	l.slots[s.slot] = s
	ev := unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET,
		Fd:     s.slot, Pad: s.gen,
	}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, s.fd, &ev); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// forget removes the side and its socket, which stays open.
func (l *loop) forget(s *side) {
	l.unregister(s)
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, s.fd, nil) // fails if it was not registered
}

func (l *loop) unregister(s *side) {
	if s.gen != 0 {
		l.slots[s.slot] = nil
		l.free = append(l.free, s.slot)
		s.gen = 0
	}
}

func (l *loop) enqueue(s *side) {
	if !s.queued {
		s.queued = true
		l.queue = append(l.queue, s)
	}
}

// runQueue gives every queued side one turn.
func (l *loop) runQueue() {
	for range len(l.queue) {
		s := l.queue[0]
		l.queue = l.queue[1:]
		s.queued = false
		if !s.pair.closed {
			s.pump()
		}
	}
	if len(l.queue) == 0 {
		l.queue = nil
	}
}

// timeout returns the timeout of epoll_wait in milliseconds; -1 means no limit.
func (l *loop) timeout() int {
	switch {
	case len(l.queue) > 0:
		return 0
	case len(l.timed) > 0:
		return int(max(0, time.Until(l.next))/time.Millisecond) + 1
	}
	return -1
}

// after calls p.timeUp when d has passed.
func (l *loop) after(p *socketPair, d time.Duration) {
	due := time.Now().Add(d)
	if len(l.timed) == 0 || due.Before(l.next) {
		l.next = due
	}
	l.timed[p] = due
}

// expire calls timeUp of the timed pairs that are due.
func (l *loop) expire() {
	if len(l.timed) == 0 {
		return
	}
	now := time.Now()
	if now.Before(l.next) {
		return
	}
	var next time.Time
	for p, due := range l.timed {
		if !now.Before(due) {
			delete(l.timed, p)
			p.timeUp()
		} else if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	l.next = next
}

// hold copies bytes that wait for their reader.
func (l *loop) hold(b []byte) []byte {
	if n := len(l.spare); n > 0 {
		s := l.spare[n-1]
		l.spare = l.spare[:n-1]
		return append(s[:0], b...)
	}
	return append(make([]byte, 0, bufferSize), b...)
}

// unhold takes a buffer of hold back for reuse.
func (l *loop) unhold(b []byte) {
	if cap(b) >= bufferSize && len(l.spare) < spareKept {
		l.spare = append(l.spare, b)
	}
}
