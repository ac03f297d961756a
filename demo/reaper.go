package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// reaper waits for all children of this process: its shells, and the orphans that the
// kernel passes to a container's first process. Package os/exec waits only for the
// children that it started, and its wait would race with a wait for all children.
type reaper struct {
	mu    sync.Mutex
	alive map[int]chan struct{} // shells by pid; closed when reaped
}

func newReaper() *reaper { return &reaper{alive: map[int]chan struct{}{}} }

// run reaps children until the process ends.
func (r *reaper) run() {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	for {
		r.collect()
		<-died
	}
}

// collect reaps all dead children. One SIGCHLD may stand for several of them.
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
		if gone, ok := r.alive[pid]; ok {
			close(gone)
			delete(r.alive, pid)
		}
	}
}

// start runs spawn, which starts one child, and returns a channel that is closed when
// that child is reaped.
func (r *reaper) start(spawn func() (*os.Process, error)) (pid int, gone <-chan struct{}, err error) {
	r.mu.Lock() // so that collect does not reap the child before it is in the map
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

// kill sends SIGKILL to the process group of a shell, unless the shell was reaped: the
// kernel may reuse the pid of a reaped process.
func (r *reaper) kill(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.alive[pid]; ok {
		_ = unix.Kill(-pid, unix.SIGKILL) // ESRCH: the shell is dead and will be reaped
	}
}
