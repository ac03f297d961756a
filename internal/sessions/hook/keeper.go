package hook

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
)

// outcomeFD is the descriptor to which a keeper writes the outcome.
const outcomeFD = 3

// outcome is the outcome of a command, as its keeper reports it.
type outcome struct {
	Problem string        `json:"problem,omitempty"` // why the keeper could not do its work
	Errno   syscall.Errno `json:"errno,omitempty"`   // why the command did not start
	Status  uint32        `json:"status,omitempty"`  // of wait(2)
	Late    bool          `json:"late,omitempty"`    // it was killed at its deadline
}

// statusError is the wait status of a command that failed.
type statusError unix.WaitStatus

func (s statusError) Error() string {
	if w := unix.WaitStatus(s); w.Signaled() {
		return "signal: " + w.Signal().String()
	}
	return fmt.Sprintf("exit status %d", unix.WaitStatus(s).ExitStatus())
}

// readOutcome reads the outcome that a keeper has written before it ended.
func readOutcome(r io.Reader) error {
	var o outcome
	if err := json.NewDecoder(io.LimitReader(r, 4096)).Decode(&o); err != nil {
		return fmt.Errorf("its keeper reports no outcome: %w", err)
	}
	switch {
	case o.Problem != "":
		return fmt.Errorf("its keeper: %s", o.Problem)
	case o.Errno != 0:
		return fmt.Errorf("start it: %w", o.Errno)
	case o.Late && o.Status != 0:
		return ErrTime
	case o.Status != 0:
		return statusError(o.Status)
	}
	return nil
}

// Main runs a keeper in the process that Run has started, and returns its exit code.
// The keeper runs a command and becomes the parent of all processes that the command
// leaves behind (PR_SET_CHILD_SUBREAPER(2const)). It kills them all when the command
// has ended, when its starter has died or closes the keeper's standard input, and at
// the deadline. It exits when they are gone.
func Main(args []string) int {
	var o outcome
	if err := keep(args, &o); err != nil {
		o.Problem = err.Error()
	}
	b, err := json.Marshal(o)
	if err == nil {
		_, err = unix.Write(outcomeFD, b)
	}
	if err != nil {
		return 1
	}
	return 0
}

func keep(args []string, o *outcome) error {
	if len(args) < 2 {
		return fmt.Errorf("%d arguments are not a deadline and a command", len(args))
	}
	deadline, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	// The signals are handled, not ignored: a command inherits ignored signals.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_CHILD_SUBREAPER: %w", err)
	}
	if err := keepDescriptors(); err != nil {
		return err
	}
	// The kernel kills the command when the thread that started it ends
	// (PR_SET_PDEATHSIG(2const)). That covers a keeper that is itself killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, err := start(args[1:])
	if err != nil {
		errno, ok := err.(syscall.Errno)
		if !ok {
			return err
		}
		o.Errno = errno
		return nil
	}
	o.Status, o.Late = attend(pid, boottime.Instant(deadline))
	return nil
}

// start starts the command with this process's output and no input.
func start(args []string) (pid int, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	return syscall.ForkExec(args[0], args, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), 1, 2},
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
	})
}

// attend waits until the command and all processes that it has started are gone. late
// reports that the deadline passed before the command had ended.
func attend(command int, deadline boottime.Instant) (status uint32, late bool) {
	over, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // only EOF comes
		end()
	}()
	var passed atomic.Bool
	go func() {
		passed.Store(passes(over, deadline))
		killAll()
	}()
	for {
		var w unix.WaitStatus
		pid, err := unix.Wait4(-1, &w, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil: // ECHILD: no child is left
			return status, passed.Load()
		case pid == command:
			status = uint32(w)
			end()
		}
	}
}

// passes waits for the deadline, if there is one, or until ctx is done. It reports
// whether the deadline passed.
func passes(ctx context.Context, deadline boottime.Instant) bool {
	if deadline != 0 {
		alarm, err := boottime.NewAlarm()
		if err == nil {
			defer alarm.Close()
			return alarm.Wait(ctx, deadline) == nil
		}
	}
	<-ctx.Done()
	return false
}

// killAll kills all descendants of this process, again and again until the process
// ends. The next round finds processes that were forked during this one.
func killAll() {
	const first, most = 5 * time.Millisecond, time.Second
	for pause := first; ; pause = min(2*pause, most) {
		for _, s := range below(os.Getpid()) {
			// The start time excludes another process that has reused the pid.
			if p, err := pidfd.OpenStarted(s.Pid, s.Start); err == nil {
				_ = p.Signal(unix.SIGKILL) // it may have ended
				p.Close()
			}
		}
		time.Sleep(pause)
	}
}

// below returns the descendants of a process.
func below(top int) (found []proc.Stat) {
	pids, err := proc.Host.Pids()
	if err != nil {
		return nil // the next round tries again
	}
	children := make(map[int][]proc.Stat)
	for _, pid := range pids {
		if s, err := proc.Host.Stat(pid); err == nil {
			children[s.PPid] = append(children[s.PPid], s)
		}
	}
	for todo := []int{top}; len(todo) > 0; todo = todo[1:] {
		for _, s := range children[todo[0]] {
			todo, found = append(todo, s.Pid), append(found, s)
		}
	}
	return found
}

// keepDescriptors sets close-on-exec on all inherited descriptors except standard
// input, output and error.
func keepDescriptors() error {
	if unix.CloseRange(outcomeFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	// Kernels before 5.11 have no CLOSE_RANGE_CLOEXEC (close_range(2)).
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, f := range open {
		if fd, err := strconv.Atoi(f.Name()); err == nil && fd >= outcomeFD {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
