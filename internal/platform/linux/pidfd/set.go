package pidfd

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Set waits for the death of many processes at once with one epoll(7). It costs no
// goroutine and no thread per process: the runtime's poller waits for the epoll
// descriptor.
type Set struct {
	file *os.File
	raw  syscall.RawConn
	evs  [256]unix.EpollEvent
}

// NewSet makes an empty set.
func NewSet() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	// os.NewFile registers a descriptor with the poller only if it is non-blocking.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("epoll: set nonblocking: %w", err)
	}
	f := os.NewFile(uintptr(fd), "epoll")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &Set{file: f, raw: raw}, nil
}

// Add adds a process with a tag, which Wait returns once when the process is dead. It
// may be called from any goroutine, also during Wait. The next Wait returns the tag
// of a process that is dead already. Closing a process removes it.
func (s *Set) Add(p *Process, tag int32) error {
	return s.control(p, unix.EPOLL_CTL_ADD, tag)
}

// Remove removes a process; one that is not in the set is no error.
func (s *Set) Remove(p *Process) error {
	err := s.control(p, unix.EPOLL_CTL_DEL, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func (s *Set) control(p *Process, op int, tag int32) error {
	var err error
	e1 := s.raw.Control(func(ep uintptr) {
		e2 := p.Control(func(fd int) {
			ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: tag}
			if err = unix.EpollCtl(int(ep), op, fd, &ev); err == unix.EEXIST {
				err = unix.EpollCtl(int(ep), unix.EPOLL_CTL_MOD, fd, &ev) // reported before; armed again
			}
		})
		err = errors.Join(err, e2)
	})
	if err = errors.Join(e1, err); err != nil {
		return fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	return nil
}

// Wait appends the tags of dead processes to tags as soon as there is one, or none
// when the deadline passes first. A zero deadline is none. One goroutine at a time
// may call it.
func (s *Set) Wait(tags []int32, deadline time.Time) ([]int32, error) {
	if err := s.file.SetReadDeadline(deadline); err != nil {
		return tags, fmt.Errorf("epoll: %w (%w)", os.ErrClosed, err)
	}
	var n int
	var err error
	e := s.raw.Read(func(ep uintptr) bool {
		for {
			if n, err = unix.EpollWait(int(ep), s.evs[:], 0); err != unix.EINTR {
				return n != 0 || err != nil
			}
		}
	})
	switch {
	case errors.Is(e, os.ErrDeadlineExceeded):
		return tags, nil
	case e != nil:
		return tags, fmt.Errorf("epoll: %w (%w)", os.ErrClosed, e)
	case err != nil:
		return tags, fmt.Errorf("epoll_wait: %w", err)
	}
	for _, ev := range s.evs[:n] {
		tags = append(tags, ev.Fd)
	}
	return tags, nil
}

// Close ends the set; a Wait in progress returns os.ErrClosed.
func (s *Set) Close() { _ = s.file.Close() }
