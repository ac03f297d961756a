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

// outcomeFD is the descriptor that a keeper writes its outcome to.
const outcomeFD = 3

// outcome is what became of a command, as its keeper tells.
type outcome struct {
	Problem string        `json:"problem,omitempty"` // why the keeper could not do its work
	Errno   syscall.Errno `json:"errno,omitempty"`   // why the command did not start
	Status  uint32        `json:"status,omitempty"`  // of wait(2)
	Late    bool          `json:"late,omitempty"`    // it was killed at its deadline
}

// statusError says how a command ended that did not succeed.
type statusError unix.WaitStatus

func (s statusError) Error() string {
	if w := unix.WaitStatus(s); w.Signaled() {
		return "signal: " + w.Signal().String()
	}
	return fmt.Sprintf("exit status %d", unix.WaitStatus(s).ExitStatus())
}

// readOutcome reads what a keeper that has ended has told.
func readOutcome(r io.Reader) error {
	var o outcome
	if err := json.NewDecoder(io.LimitReader(r, 4096)).Decode(&o); err != nil {
		return fmt.Errorf("its keeper says nothing: %w", err)
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

// Main is a keeper's whole life, in the process that Run made: it runs a command,
// and is the parent of whatever the command leaves behind
// (PR_SET_CHILD_SUBREAPER, PR_SET_CHILD_SUBREAPER(2const)). It kills all that, and
// ends when it is gone: when the command has ended, when its starter has or closes
// its standard input, and at the deadline. It returns the exit code.
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
		return fmt.Errorf("%d arguments are no deadline and command", len(args))
	}
	deadline, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	// Handled and not ignored: what is ignored stays so in a command.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_CHILD_SUBREAPER: %w", err)
	}
	if err := keepDescriptors(); err != nil {
		return err
	}
	// The kernel kills the command when the thread that started it ends, as it
	// does with this process (PR_SET_PDEATHSIG(2const)): that is for a keeper
	// that is killed itself.
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

// attend waits until the command and all that it has started are gone. late says
// that the deadline came before the command had ended.
func attend(command int, deadline boottime.Instant) (status uint32, late bool) {
	over, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // nothing comes but the end
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
		case err != nil: // ECHILD: there is nothing left
			return status, passed.Load()
		case pid == command:
			status = uint32(w)
			end()
		}
	}
}

// passes waits for the deadline, where there is one, or until ctx is done, and
// reports whether it was the deadline.
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

// killAll kills whatever this process is above, until nothing is: then the
// process ends. What forks meanwhile is found by the next look.
func killAll() {
	const first, most = 5 * time.Millisecond, time.Second
	for pause := first; ; pause = min(2*pause, most) {
		for _, s := range below(os.Getpid()) {
			// The very process, and no other that has got its pid by now.
			if p, err := pidfd.OpenStarted(s.Pid, s.Start); err == nil {
				_ = p.Signal(unix.SIGKILL) // it may have ended
				p.Close()
			}
		}
		time.Sleep(pause)
	}
}

// below are the processes that a process is above.
func below(top int) (found []proc.Stat) {
	pids, err := proc.Host.Pids()
	if err != nil {
		return nil // the next look may do better
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

// keepDescriptors keeps what this process was started with, but for input and
// output, from going on to the command.
func keepDescriptors() error {
	if unix.CloseRange(outcomeFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	// A kernel before 5.11, close_range(2).
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
