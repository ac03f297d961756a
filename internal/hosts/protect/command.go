package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killAfter is how long a command may take to end after a SIGTERM.
const killAfter = 5 * time.Second

func (o Options) command(ctx context.Context, path string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, o.Command[1:]...)
	cmd.Args[0] = o.Command[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.Stdin, o.Stdout, o.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = killAfter
	return cmd
}

// exitOf returns how a command ended. A server that the command started may
// keep the output open, which is not an error.
func exitOf(cmd *exec.Cmd, err error) (code int, killed bool, _ error) {
	if cmd.ProcessState == nil {
		return 0, false, fmt.Errorf("wait for the command: %w", err)
	}
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal()), true, nil
	}
	return cmd.ProcessState.ExitCode(), false, nil
}

// CommandError reports that a command could not be run.
type CommandError struct {
	Name string
	Err  error
}

func commandError(name string, err error) error { return &CommandError{name, err} }

func (e *CommandError) Error() string { return fmt.Sprintf("run %s: %v", e.Name, e.Err) }
func (e *CommandError) Unwrap() error { return e.Err }

// Hint says what to check.
func (e *CommandError) Hint() string {
	if errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist) {
		return "the command comes after --, as its name and arguments; a shell's line needs `sh -c '…'`"
	}
	return "check that the file is executable"
}

// ExitCode returns the code that a shell uses: 127 for not found, 126 for not
// executable.
func (e *CommandError) ExitCode() int {
	if errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist) {
		return 127
	}
	return 126
}
