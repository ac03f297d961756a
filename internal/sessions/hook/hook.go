// Package hook runs a command of the operator's on this host, and sees to it
// that it ends: with all that it has started, at a deadline, and when this
// process dies or is stopped. For that each command is run by a keeper, a small
// process of the same binary (Main).
package hook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/boottime"
)

// Bounds of a run.
const (
	maxOutput = 4 << 10                // bytes of the output's end that are kept
	linger    = 100 * time.Millisecond // for the output's end when the keeper has ended
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

// Runner is a command line whose process calls Main with the words that follow:
// as a rule this program's own executable and "hook".
type Runner []string

// Run runs the command in / with an empty standard input, in a process group of
// its own. It returns when the command has ended; what it leaves running is
// killed then. When ctx is done all of it is killed, and when its deadline passes
// also while this process is stopped.
func (r Runner) Run(ctx context.Context, c Command) Result {
	if len(c.Args) == 0 || !filepath.IsAbs(c.Args[0]) {
		return Result{Err: fmt.Errorf("the command %q has no absolute path", c.Args)}
	}
	if len(r) == 0 {
		return Result{Err: errors.New("not run: there is no keeper for it")}
	}
	if ctx.Err() != nil {
		return Result{Err: fmt.Errorf("not run: %w", context.Cause(ctx))}
	}
	out := &tail{}
	begun := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx, c, out) }()
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

// run starts the keeper and waits for it. The keeper's standard input is a pipe
// whose end is this process's end, or that of ctx.
func (r Runner) run(ctx context.Context, c Command, out *tail) error {
	life, lifeline, err := os.Pipe()
	if err != nil {
		return err
	}
	defer lifeline.Close()
	defer life.Close()
	told, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer told.Close()
	defer tell.Close()
	cmd := exec.Command(r[0], slices.Concat(r[1:], []string{deadlineOf(ctx)}, c.Args)...)
	cmd.Dir = "/"
	cmd.Env = append(environment(), c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = life, out, out
	cmd.ExtraFiles = []*os.File{tell}
	cmd.WaitDelay = linger
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // what goes to this process's group is not for it
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start its keeper: %w", err)
	}
	tell.Close()
	defer context.AfterFunc(ctx, func() { lifeline.Close() })()
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the kernel holds something that has the output
	}
	if err != nil {
		return fmt.Errorf("its keeper: %w", err)
	}
	return readOutcome(told)
}

// deadlineOf is ctx's deadline in the clock that goes on while the host sleeps,
// as the keeper reads it; "0" for none.
func deadlineOf(ctx context.Context) string {
	until, ok := ctx.Deadline()
	if !ok {
		return "0"
	}
	return strconv.FormatInt(int64(boottime.Now().Add(time.Until(until))), 10)
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
