package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

func (a *app) sessionExec() *cobra.Command {
	var tty, stdin, detach bool
	cmd := &cobra.Command{
		Use:   "exec KEY -- COMMAND [ARG...]",
		Short: "Run a command in a session's container",
		Long: "Run a command in a session's container, with this terminal if there is one, and exit with its exit code.\n" +
			"Flags go before KEY; everything after it is the command.\n" +
			"With --detach, exec prints the command's id and exits at once. The command runs until it ends or its session does,\n" +
			"also while the agent is restarted. `session commands`, `attach` and `signal` reach it by its id. It has an input\n" +
			"and a terminal only if -i and -t are given.",
		Example: "  holdfast session exec alice -- sh\n  tar c . | holdfast session exec alice -- tar x -C /srv\n" +
			"  holdfast session exec --detach alice -- make all",
		Args:              args(2, 1<<16, "a session key and a command"),
		ValidArgsFunction: onlyOne(a.completeKeys),
		RunE: func(cmd *cobra.Command, words []string) error {
			command := words[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return usage(cmd, fmt.Errorf("%s needs a command", cmd.CommandPath()))
			}
			if detach {
				q := api.ExecRequest{Command: command, TTY: tty, Stdin: stdin && cmd.Flags().Changed("stdin")}
				return a.withKey(cmd, words[0], startLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
					return a.detach(ctx, c, key, q)
				})
			}
			if !cmd.Flags().Changed("tty") {
				_, in := terminal(a.ui.in)
				_, out := terminal(a.ui.out)
				tty = in && out && stdin
			}
			return a.withKey(cmd, words[0], noLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
				e := api.Exec{Command: command, TTY: tty, Stdout: a.ui.out, Stderr: a.ui.err}
				if stdin {
					e.Stdin = a.ui.in
				}
				return a.exec(ctx, c, key, e)
			})
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&tty, "tty", "t", false, "give the command a terminal (default: if this is one)")
	f.BoolVarP(&detach, "detach", "d", false, "leave the command running, and print its id")
	f.BoolVarP(&stdin, "stdin", "i", true, "pass the input on; -i=false keeps the command from reading the input of a script")
	return cmd
}

// exec runs e with this terminal, if e needs one, and restores the terminal.
func (a *app) exec(ctx context.Context, c *client.Client, key holdfast.SessionKey, e api.Exec) error {
	if e.TTY {
		sizes, restore, err := takeTerminal(e.Stdin, a.ui.out, apiSize)
		if err != nil {
			return err
		}
		defer restore()
		e.Resize = sizes
	}
	code, err := c.Exec(ctx, key, e)
	if err != nil {
		return err
	}
	if code != 0 {
		return status(code)
	}
	return nil
}

func apiSize(rows, cols int) api.Size { return api.Size{Rows: uint16(rows), Cols: uint16(cols)} }

// takeTerminal gives a command this terminal: input without line editing, if in is a
// terminal, and the sizes of out, if that is one. restore undoes it.
func takeTerminal[Size any](in io.Reader, out io.Writer, of func(rows, cols int) Size) (sizes chan Size, restore func(), err error) {
	restoreInput, stopWatching := func() {}, func() {}
	if f, ok := terminal(in); ok {
		before, err := term.MakeRaw(int(f.Fd()))
		if err != nil {
			return nil, nil, fmt.Errorf("switching the terminal to raw input: %w", err)
		}
		restoreInput = func() { _ = term.Restore(int(f.Fd()), before) }
	}
	if f, ok := terminal(out); ok {
		sizes = make(chan Size, 1)
		stopWatching = watchSize(f, sizes, of)
	}
	restore = func() {
		restoreInput()
		stopWatching()
	}
	return sizes, restore, nil
}

// watchSize sends the terminal's size to sizes, a channel with room for one: now, and
// after each change, until stop is called.
func watchSize[Size any](f *os.File, sizes chan Size, of func(rows, cols int) Size) (stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	send := func() {
		cols, rows, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return
		}
		select {
		case <-sizes: // the last size was not read: it is outdated
		default:
		}
		sizes <- of(rows, cols)
	}
	send()
	var watching sync.WaitGroup
	watching.Go(func() {
		for range changed {
			send()
		}
	})
	return func() {
		signal.Stop(changed) // nothing is sent to changed after it
		close(changed)
		watching.Wait()
	}
}
