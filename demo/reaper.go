package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// reaper is the only one in this process that waits for children: for its own
// shells, and for the orphans that the kernel hands to a container's first
// process. It cannot be left to os/exec, which waits for its own children only,
// and whose wait would race with one for all.
type reaper struct {
	mu    sync.Mutex
	alive map[int]chan struct{} // own children by pid; closed when reaped
}

func newReaper() *reaper { return &reaper{alive: map[int]chan struct{}{}} }

// run collects children for as long as the process lives, as a first process
// must.
func (r *reaper) run() {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	for {
		r.collect()
		<-died
	}
}

// collect reaps everything that is dead now. One SIGCHLD may stand for many.
func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 { // ECHILD, or no child is dead
			return
		}
		if gone, ours := r.alive[pid]; ours {
			close(gone)
			delete(r.alive, pid)
		}
	}
}

// start runs spawn, which starts one child, and returns a channel that is
// closed once that child is reaped.
func (r *reaper) start(spawn func() (*os.Process, error)) (pid int, gone <-chan struct{}, err error) {
	r.mu.Lock() // so that the child is not reaped before it is known
	defer r.mu.Unlock()
	p, err := spawn()
	if err != nil {
		return 0, nil, err
	}
	pid = p.Pid
	if err := p.Release(); err != nil {
		return 0, nil, fmt.Errorf("hand child %d over: %w", pid, err)
	}
	c := make(chan struct{})
	r.alive[pid] = c
	return pid, c, nil
}

// kill ends the process group that an own child leads, if the child is not
// reaped yet: after that its pid may be reused.
func (r *reaper) kill(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.alive[pid]; ok {
		_ = unix.Kill(-pid, unix.SIGKILL) // ESRCH: dead already, about to be reaped
	}
}
