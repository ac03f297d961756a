// Package rig starts what benches of several nodes need: child processes whose output
// goes to logs, and etcd clusters of such processes.
package rig

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/pidfd"
)

// Patience is the time limit of short waits.
const Patience = time.Minute

// Nice is a priority for etcd's members and agents, setpriority(2). Agents have it from
// their service manager, and a fleet's etcd has CPUs of its own. On one machine dozens of
// containers that start at once would keep etcd from answering, and nodes whose leases are
// not renewed end what they own.
const Nice = -10

// Process is a child of the bench, or a process that a child has started. Its standard
// error goes to a log, and its standard input ends with the bench. Any goroutine may call
// its methods.
type Process struct {
	Name    string
	Ended   chan struct{}  // closed when it has ended
	cmd     *exec.Cmd      // nil: it is not a child
	handle  *pidfd.Process // of a process that is not a child
	stdin   io.Closer
	stdout  *os.File // our end; nil: it goes to the log, too
	logFile string
	Asked   atomic.Bool // the bench ends it, so its end is not a fault
}

// Start starts a command with a priority. The command appends its output to the log.
// printsReady is true for a process on which the caller calls AwaitReady.
func Start(name string, argv []string, logFile string, nice int, printsReady bool) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &Process{Name: name, cmd: exec.Command(argv[0], argv[1:]...), logFile: logFile, Ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals of the terminal are the bench's
	if printsReady {
		ours, theirs, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer theirs.Close()
		p.stdout, p.cmd.Stdout = ours, theirs
	}
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its state
		close(p.Ended)
	}()
	// The group is this process with all its threads. ESRCH: it has ended already.
	if err := unix.Setpriority(unix.PRIO_PGRP, p.cmd.Process.Pid, nice); err != nil && !errors.Is(err, unix.ESRCH) {
		p.Kill()
		return nil, fmt.Errorf("the priority of %s: %w", name, err)
	}
	return p, nil
}

// Adopt follows a process that a child has started as its successor, with the child's
// name and log.
func (p *Process) Adopt(pid int) (*Process, error) {
	h, err := pidfd.Open(pid)
	if err != nil {
		return nil, fmt.Errorf("follow the successor of %s: %w", p.Name, err)
	}
	next := &Process{Name: p.Name, handle: h, logFile: p.logFile, Ended: make(chan struct{})}
	go func() {
		defer close(next.Ended)
		_ = h.Control(func(fd int) {
			for !h.Exited() {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1) // an interruption
			}
		})
	}()
	return next, nil
}

// AwaitReady returns when the process has printed ready. It waits for at most Patience.
func (p *Process) AwaitReady(ctx context.Context) error {
	defer p.stdout.Close()
	if err := p.stdout.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { p.stdout.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := bufio.NewReader(p.stdout).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != ready {
		return fmt.Errorf("%s is not ready (it printed %q): %w\n%s", p.Name, line, err, p.Tail())
	}
	return nil
}

func (p *Process) alive() bool {
	select {
	case <-p.Ended:
		return false
	default:
		return true
	}
}

// Kill ends the process at once and returns when it has ended.
func (p *Process) Kill() {
	p.Asked.Store(true)
	p.Signal(unix.SIGKILL)
	<-p.Ended
	p.close()
}

// Signal sends a signal. A process that has ended gets none.
func (p *Process) Signal(s unix.Signal) {
	if p.handle != nil {
		_ = p.handle.Signal(s)
		return
	}
	_ = p.cmd.Process.Signal(s)
}

// Terminate sends SIGTERM and waits for the end, as AwaitEnd does.
func (p *Process) Terminate(limit time.Duration) error {
	p.Asked.Store(true)
	p.Signal(unix.SIGTERM)
	return p.AwaitEnd(limit)
}

// AwaitEnd waits until the process has ended. After the limit it kills the process. That
// is an error, as is any exit code but 0.
func (p *Process) AwaitEnd(limit time.Duration) error {
	p.Asked.Store(true)
	select {
	case <-p.Ended:
	case <-time.After(limit):
		p.Kill()
		return fmt.Errorf("%s did not end within %v\n%s", p.Name, limit, p.Tail())
	}
	p.close()
	if how := p.ending(); how != "exit status 0" {
		return fmt.Errorf("%s ended: %s\n%s", p.Name, how, p.Tail())
	}
	return nil
}

// ending describes how the process has ended. Only the parent of a process learns its exit
// code: that of another process is known by the error at the end of its log.
func (p *Process) ending() string {
	if p.cmd != nil {
		return p.cmd.ProcessState.String()
	}
	lines := strings.Split(p.Tail(), "\n")
	for _, line := range lines[max(0, len(lines)-2):] { // "error: " and "hint: "
		if strings.HasPrefix(line, "error: ") {
			return "with an error"
		}
	}
	return "exit status 0"
}

// PID returns the id of the process.
func (p *Process) PID() int {
	if p.handle != nil {
		return p.handle.Pid()
	}
	return p.cmd.Process.Pid
}

func (p *Process) close() {
	if p.handle != nil {
		p.handle.Close()
	}
	if p.stdin != nil {
		p.stdin.Close()
	}
	if p.stdout != nil {
		p.stdout.Close()
	}
}

// Fault returns an error if the process ended without being asked to.
func (p *Process) Fault() error {
	if p.alive() || p.Asked.Load() {
		return nil
	}
	return fmt.Errorf("%s exited unexpectedly: %s\n%s", p.Name, p.ending(), p.Tail())
}

// tailBytes is how much of a log an error shows.
const tailBytes = 4 << 10

// Tail returns the end of the log.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	text = text[max(0, len(text)-tailBytes):]
	return string(bytes.TrimSpace(text))
}
