package cli

import (
	"cmp"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/pki"
)

// Exit codes. They are part of the interface for scripts.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitEngineStore = 4
	exitNotFound    = 5
	exitPartial     = 6
	exitBoot        = 7
	exitNotNow      = 8
	exitFindings    = 9
	exitNotReady    = 10
	exitGaveUp      = 11
	exitInterrupted = 130 // 128 + SIGINT, as in shells
)

// ExitUsage is the exit code of an error of Usage.
const ExitUsage = exitUsage

// Exit is an error that ends the command with the code and prints nothing: the message
// was already printed.
func Exit(code int) error { return status(code) }

const exitCodesText = `Exit codes of all commands:

    0  done
    1  failed, for a reason that has no code of its own
    2  the command line or the configuration was not understood
    3  the agent, or a cluster's API server, cannot be reached, or did not answer in time
    4  the container engine or the ownership store is not available
    5  no such session, node, container or image
    6  done in part: the output names what was left behind
    7  the session's container did not become ready
    8  not now: the node is draining, or too many are waiting
    9  the doctor found something that slows containers down
   10  the server that was restarted listens, and did not become ready in time
   11  the server of "holdfast protect run" did not listen again within --give-up
  130  interrupted

"holdfast session exec" and "holdfast session attach" exit with the exit code of the
command in the container. If the command could not be run, they print a line that
begins with "error:" and exit with one of the codes above. "holdfast run" exits with the code of its first
failing step, or 126 or 127 if that step could not be run. It exits with 125 if the
job itself could not be run.
`

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "The exit codes and their meaning", Long: exitCodesText}
}

// coder is an error with its own exit code.
type coder interface{ ExitCode() int }

// exitCode returns the exit code for the error of a command.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var own coder
	if errors.As(err, &own) {
		return own.ExitCode()
	}
	var (
		key  *holdfast.KeyError
		node *pki.NodeError
		addr *client.AddressError
		boot *holdfast.BootError
		wire *api.Error
	)
	if errors.As(err, &wire) {
		switch wire.Code {
		case api.CodeBootFailed:
			return exitBoot
		case api.CodeBadKey, api.CodeBadRequest:
			return exitUsage
		}
	}
	switch {
	case errors.Is(err, client.ErrUnreachable), errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.Is(err, holdfast.ErrEngine), errors.Is(err, holdfast.ErrStore):
		return exitEngineStore
	case errors.Is(err, holdfast.ErrNotFound):
		return exitNotFound
	case errors.Is(err, holdfast.ErrDraining), errors.Is(err, holdfast.ErrBusy):
		return exitNotNow
	case errors.As(err, &boot):
		return exitBoot
	case errors.As(err, &key), errors.As(err, &node), errors.As(err, &addr):
		return exitUsage
	}
	return exitFailed
}

// status is the exit code of a command that ran elsewhere. It prints nothing.
type status int

func (s status) Error() string { return "the command that was run failed" }
func (s status) ExitCode() int { return int(s) }

// exitError is an error with an exit code. hint is "" if err's own hint is enough.
type exitError struct {
	err  error
	code int
	hint string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }
func (e *exitError) Hint() string  { return cmp.Or(e.hint, holdfast.HintOf(e.err)) }
func (e *exitError) ExitCode() int { return e.code }

// usage makes err an error in cmd's command line.
func usage(cmd *cobra.Command, err error) error {
	return &exitError{err, exitUsage, "see `" + cmd.CommandPath() + " --help`"}
}

// Usage makes err a usage error.
func Usage(err error) error { return &exitError{err: err, code: exitUsage} }

// ConfigError makes err an error in the configuration.
func ConfigError(err error) error {
	return &exitError{err, exitUsage, cmp.Or(holdfast.HintOf(err), "docs/configuration.md has every key")}
}

// Partial makes err an error about what was left behind.
func Partial(err error, hint string) error { return &exitError{err, exitPartial, hint} }
