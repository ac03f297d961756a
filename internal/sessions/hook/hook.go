// Package hook runs a command of the operator on this host. The command and all
// processes that it has started end at a deadline, and when this process dies or is
// stopped. For that, each command is run by a keeper, a small process of the same
// binary (Main).
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
	maxOutput   = 4 << 10                // bytes; the end of the output is kept
	outputDelay = 100 * time.Millisecond // for the rest of the output after the keeper has ended
	killLimit   = time.Second            // for a killed process to exit; one in uninterruptible sleep may take longer
)

// ErrTime means that the command was killed at its deadline. It wraps
// context.DeadlineExceeded.
var ErrTime = fmt.Errorf("not done in time: %w", context.DeadlineExceeded)

// Command is a command to run.
type Command struct {
	// Args begin with the program's absolute path. No shell sees them.
	Args []string
	// Env has entries KEY=value. They are added to this process's environment without
	// the variables of Holdfast and systemd.
	Env []string
}

// Result is the outcome of a command.
type Result struct {
	Took   time.Duration
	Output string // the last 4 KiB of standard output and error together
	// Err is nil for exit code 0. It wraps ErrTime if the deadline passed, and ctx's
	// cause if ctx was cancelled. Otherwise it describes how the command ended.
	Err error
}

// Runner is a command line whose process calls Main with the words that follow:
// usually this program's own executable and "hook".
type Runner []string

// Run runs the command in / with an empty standard input, in a process group of its
// own. It returns when the command has ended; processes that the command leaves
// running are killed then. When ctx is done, all of them are killed. At ctx's
// deadline that happens even while this process is stopped.
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

// errHeld means that the command was killed and does not exit.
var errHeld = errors.New("it is in uninterruptible sleep")

// await returns how the command ended, or errHeld.
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

// run starts the keeper and waits for it. The keeper's standard input is a pipe,
// which is at EOF when this process has died or ctx is done.
func (r Runner) run(ctx context.Context, c Command, out *tail) error {
	stdin, lifeline, err := os.Pipe()
	if err != nil {
		return err
	}
	defer lifeline.Close()
	defer stdin.Close()
	outcome, outcomeEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer outcome.Close()
	defer outcomeEnd.Close()
	cmd := exec.Command(r[0], slices.Concat(r[1:], []string{deadlineOf(ctx)}, c.Args)...)
	cmd.Dir = "/"
	cmd.Env = append(environment(), c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, out
	cmd.ExtraFiles = []*os.File{outcomeEnd}
	cmd.WaitDelay = outputDelay
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // signals to this process's group do not reach it
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start its keeper: %w", err)
	}
	outcomeEnd.Close()
	defer context.AfterFunc(ctx, func() { lifeline.Close() })()
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // a process in uninterruptible sleep has the output open
	}
	if err != nil {
		return fmt.Errorf("its keeper: %w", err)
	}
	return readOutcome(outcome)
}

// deadlineOf is ctx's deadline on CLOCK_BOOTTIME in nanoseconds, as the keeper parses
// it; "0" is none.
func deadlineOf(ctx context.Context) string {
	until, ok := ctx.Deadline()
	if !ok {
		return "0"
	}
	return strconv.FormatInt(int64(boottime.Now().Add(time.Until(until))), 10)
}

// environment is this process's environment, without the variables of Holdfast and
// systemd.
func environment() []string {
	prefixes := []string{"HOLDFAST_", "NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_"}
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(kv, prefix) })
	})
}

// tail keeps the last maxOutput bytes that are written to it.
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
