// Package hook runs a command of the operator's on this host, and sees to it
// that it ends: with all that it has started, at a deadline, and when this
// process dies.
package hook

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a run.
const (
	maxOutput = 4 << 10                // bytes of the output's end that are kept
	linger    = 100 * time.Millisecond // for what has left the process group and still holds the output
	killLimit = time.Second            // for a killed process to be gone; one that the kernel holds may take longer
)

// ErrTime means that the command was killed because it was not done in time. It
// wraps context.DeadlineExceeded.
var ErrTime = fmt.Errorf("not done in time: %w", context.DeadlineExceeded)

// Command is what to run.
type Command struct {
	// Args begin with the program's absolute path. No shell sees them.
	Args []string
	// Env is KEY=value, beside this process's own environment, of which
	// what is Holdfast's and systemd's is left out.
	Env []string
}

// Result is what became of a command.
type Result struct {
	Took   time.Duration
	Output string // the last 4 KiB of standard output and error together
	// Err is nil for exit code 0. It wraps ErrTime where the deadline came,
	// ctx's cause where ctx was cancelled, and else says how it ended.
	Err error
}

// Run runs the command in / with an empty standard input, in a process group of
// its own. It returns when the command has ended; what it leaves running in its
// group is killed then. When ctx is done the whole group is killed.
func Run(ctx context.Context, c Command) Result {
	if len(c.Args) == 0 || !filepath.IsAbs(c.Args[0]) {
		return Result{Err: fmt.Errorf("the command %q has no absolute path", c.Args)}
	}
	if ctx.Err() != nil {
		return Result{Err: fmt.Errorf("not run: %w", context.Cause(ctx))}
	}
	out := &tail{}
	begun := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, c, out) }()
	err := await(ctx, ended)
	if err != nil && ctx.Err() != nil {
		err = whyKilled(ctx, err)
	}
	return Result{Took: time.Since(begun), Output: out.String(), Err: err}
}

// errHeld is of a command that was killed and does not go away.
var errHeld = errors.New("the kernel still holds it")

// await returns how the command ended, also where it does not end once killed.
func await(ctx context.Context, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(killLimit):
		return errHeld
	}
}

func whyKilled(ctx context.Context, err error) error {
	why := fmt.Errorf("killed: %w", context.Cause(ctx))
	if errors.Is(why, context.DeadlineExceeded) {
		why = ErrTime
	}
	if errors.Is(err, errHeld) {
		why = fmt.Errorf("%w; %w", why, err)
	}
	return why
}

// run starts the command and waits for it, on one thread: the kernel kills the
// command when the thread that started it ends, as it does with this process
// (PR_SET_PDEATHSIG, prctl(2)).
func run(ctx context.Context, c Command, out *tail) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(environment(), c.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = linger
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if err := keepDescriptors(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// The group's number is the command's own as long as it is not reaped.
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		killGroup(cmd.Process.Pid)
	})
	awaitExit(cmd.Process.Pid)
	if !stop() {
		<-killed
	}
	killGroup(cmd.Process.Pid)
	err := cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // something that left the group has its output still
	}
	return err
}

// keepDescriptors keeps what this process was itself started with from going on
// to the command. All else is opened with O_CLOEXEC.
func keepDescriptors() error {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	// A kernel before 5.11, close_range(2).
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, f := range open {
		if fd, err := strconv.Atoi(f.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// killGroup kills all that is in the process group. One that is empty is none.
func killGroup(leader int) { _ = unix.Kill(-leader, unix.SIGKILL) }

// awaitExit returns when the process is dead, and leaves it to be reaped.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// environment is this process's, without what is meant for it alone.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		own := false
		for _, prefix := range []string{"HOLDFAST_", "NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_"} {
			own = own || strings.HasPrefix(kv, prefix)
		}
		if !own {
			env = append(env, kv)
		}
	}
	return env
}

// tail keeps the last maxOutput bytes of what is written.
type tail struct {
	mu    sync.Mutex
	bytes []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes = append(t.bytes, p[max(0, len(p)-maxOutput):]...)
	if over := len(t.bytes) - maxOutput; over > 0 {
		t.bytes = append(t.bytes[:0], t.bytes[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.bytes), "�")
}
