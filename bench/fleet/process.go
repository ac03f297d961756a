package fleet

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
)

// patience is the time limit of short waits.
const patience = time.Minute

// process is a child of the bench. Its standard error goes to a log, and its
// standard input ends with the bench.
type process struct {
	name    string
	cmd     *exec.Cmd
	stdin   io.Closer
	stdout  *os.File // our end; nil where it goes to the log, too
	logFile string
	ended   chan struct{}
	asked   atomic.Bool // the bench asked it to end
}

// startProcess starts a command that appends its output to the log. saysReady is true
// for a process on which the caller calls awaitReady.
func startProcess(name string, argv []string, logFile string, saysReady bool) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), logFile: logFile, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals of the terminal are the bench's
	if saysReady {
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
		close(p.ended)
	}()
	// The group has no process but this one; so all its threads are meant. One
	// that has ended already says why elsewhere.
	if err := unix.Setpriority(unix.PRIO_PGRP, p.cmd.Process.Pid, nice); err != nil && !errors.Is(err, unix.ESRCH) {
		p.kill()
		return nil, fmt.Errorf("the priority of %s: %w", name, err)
	}
	return p, nil
}

// awaitReady returns when the process has printed ready.
func (p *process) awaitReady(ctx context.Context) error {
	defer p.stdout.Close()
	if err := p.stdout.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { p.stdout.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := bufio.NewReader(p.stdout).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != ready {
		return fmt.Errorf("%s is not ready (it printed %q): %w\n%s", p.name, line, err, p.tail())
	}
	return nil
}

// alive reports whether the process runs.
func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill ends the process at once and returns when it has ended.
func (p *process) kill() {
	p.asked.Store(true)
	_ = p.cmd.Process.Kill() // an error: it has ended
	<-p.ended
	p.close()
}

// signal sends a signal; one that has ended gets none.
func (p *process) signal(s unix.Signal) { _ = p.cmd.Process.Signal(s) }

// terminate asks the process to end and waits until it has; after the limit it
// is killed, which is an error, as any exit code but 0 is.
func (p *process) terminate(limit time.Duration) error {
	p.asked.Store(true)
	p.signal(unix.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(limit):
		p.kill()
		return fmt.Errorf("%s did not end within %v\n%s", p.name, limit, p.tail())
	}
	p.close()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with code %d\n%s", p.name, code, p.tail())
	}
	return nil
}

func (p *process) close() {
	if p.stdin != nil {
		p.stdin.Close()
	}
	if p.stdout != nil {
		p.stdout.Close()
	}
}

// fault returns an error if the process ended without being asked to.
func (p *process) fault() error {
	if p.alive() || p.asked.Load() {
		return nil
	}
	return fmt.Errorf("%s exited unexpectedly: %s\n%s", p.name, p.cmd.ProcessState, p.tail())
}

// tailBytes is how much of a log an error shows.
const tailBytes = 4 << 10

func (p *process) tail() string {
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	text = text[max(0, len(text)-tailBytes):]
	return string(bytes.TrimSpace(text))
}
