package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/frame"
	"holdfast/internal/platform/tasks"
)

// detach starts a detached command and prints its id.
func (a *app) detach(ctx context.Context, c *client.Client, key holdfast.SessionKey, q api.ExecRequest) error {
	started, err := c.StartCommand(ctx, key, q)
	return show(a.ui, started, err, func(w io.Writer, s holdfast.Command) { fmt.Fprintln(w, s.ID) })
}

func (a *app) sessionCommands() *cobra.Command {
	return a.aboutKey(&cobra.Command{
		Use:   "commands KEY",
		Short: "List the detached commands of a session",
		Long: "List the detached commands of a session, by their start: those that run, and those that ended in the last ten minutes.\n" +
			"`holdfast session exec --detach` starts one.",
		Example: "  holdfast session commands alice\n  holdfast session commands alice --json",
	}, askLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		all, err := c.Commands(ctx, key)
		return show(a.ui, all, err, a.commandTable)
	})
}

func (a *app) commandTable(w io.Writer, all []holdfast.Command) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no detached commands; `holdfast session exec --detach KEY -- COMMAND` starts one")
		return
	}
	now := a.deps.Now()
	fmt.Fprintln(w, "ID\tSTATE\tAGE\tOUTPUT\tLOST\tATTACHED\tCOMMAND")
	for _, c := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", c.ID, commandState(c), age(now, c.StartedAt), c.Output, c.Lost, c.Attached, clean(commandLine(c.Command)))
	}
}

func commandState(c holdfast.Command) string {
	switch {
	case c.Running():
		return "running"
	case c.Error != "":
		return clean(c.Error)
	}
	return fmt.Sprintf("exit %d", c.ExitCode)
}

// maxCommandLine is the number of bytes of a command that a table shows.
const maxCommandLine = 60

func commandLine(words []string) string {
	line := strings.Join(words, " ")
	if len(line) > maxCommandLine {
		line = strings.ToValidUTF8(line[:maxCommandLine], "") + "…"
	}
	return line
}

func (a *app) sessionSignal() *cobra.Command {
	return &cobra.Command{
		Use:   "signal KEY ID SIGNAL",
		Short: "Send a signal to a detached command",
		Long: "Send a signal to the process of a detached command. The signal does not reach the processes that the command has started.\n" +
			"SIGNAL is a name such as TERM or KILL, or a number.",
		Example:           "  holdfast session signal alice f3k2a7qz TERM",
		Args:              args(3, 3, "a session key, a command's id and a signal"),
		ValidArgsFunction: a.completeCommands,
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.withKey(cmd, words[0], askLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
				return c.SignalCommand(ctx, key, words[1], words[2])
			})
		},
	}
}

func (a *app) sessionAttach() *cobra.Command {
	var offset int64
	var stdin bool
	cmd := &cobra.Command{
		Use:   "attach KEY ID",
		Short: "Read a detached command's output, and wait for its end",
		Long: "Print the output of a detached command, kept and new, and exit with its exit code. The end of attach has no effect on\n" +
			"the command. If the agent is replaced or restarted meanwhile, attach continues at its position.\n" +
			"On a terminal, Ctrl-P Ctrl-Q ends attach. The agent keeps the last 512 KiB of the output; the number of lost bytes is\n" +
			"printed on stderr.",
		Example:           "  holdfast session attach alice f3k2a7qz\n  holdfast session attach alice f3k2a7qz --offset -1000\n  holdfast session attach alice f3k2a7qz > /dev/null",
		Args:              args(2, 2, "a session key and a command's id"),
		ValidArgsFunction: a.completeCommands,
		RunE: func(cmd *cobra.Command, words []string) error {
			if !cmd.Flags().Changed("stdin") {
				_, stdin = terminal(a.ui.in)
			}
			return a.withKey(cmd, words[0], noLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
				return a.join(ctx, c, attachment{key: key, id: words[1], at: offset, stdin: stdin})
			})
		},
	}
	f := cmd.Flags()
	f.Int64Var(&offset, "offset", 0, "position in the whole output to begin at; below 0 it counts from the end")
	f.BoolVarP(&stdin, "stdin", "i", false, "pass the input on, with its end (default: if this is a terminal)")
	return cmd
}

// attachment is a call of attach.
type attachment struct {
	key   holdfast.SessionKey
	id    string
	at    int64 // offset of the next byte
	stdin bool
}

// attachAgain is how long attach tries to reach an agent that has ended, longer than a
// restart of an agent on a busy host.
const attachAgain = time.Minute

// join joins a command with this terminal, if the command has one.
func (a *app) join(ctx context.Context, c *client.Client, t attachment) error {
	all, err := c.Commands(ctx, t.key)
	if err != nil {
		return err
	}
	var tty bool
	for _, one := range all {
		if one.ID == t.id {
			tty, t.stdin = one.TTY, t.stdin && one.Stdin
		}
	}
	e := api.Exec{Stdout: a.ui.out, Stderr: a.ui.err}
	if t.stdin {
		e.Stdin = a.ui.in
	}
	if tty {
		sizes, restore, err := takeTerminal(e.Stdin, a.ui.out, apiSize)
		if err != nil {
			return err
		}
		defer restore()
		e.Resize = sizes
	}
	code, err := a.follow(ctx, c, t, e, tty)
	if errors.Is(err, errDetached) {
		return nil
	}
	if err != nil {
		return err
	}
	if code != 0 {
		return status(code)
	}
	return nil
}

// follow attaches again after each loss of the agent. Input that is no terminal's cannot
// be sent twice: then the first loss is an error.
func (a *app) follow(ctx context.Context, c *client.Client, t attachment, e api.Exec, tty bool) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	again := e.Stdin == nil
	var keys *relay
	if _, ok := terminal(e.Stdin); ok {
		again, keys = true, &relay{in: e.Stdin, leave: func() { cancel(errDetached) }, escapes: tty}
	}
	for since := time.Now(); ; {
		if keys != nil {
			e.Stdin = keys.next()
		}
		code, err := c.Attach(ctx, t.key, t.id, api.AttachRequest{Offset: t.at}, e, func(p frame.Position) {
			if p.Lost > 0 {
				a.ui.note("%d bytes of output lost", p.Lost)
			}
			t.at, since = p.Offset, time.Now()
		})
		switch {
		case errors.Is(context.Cause(ctx), errDetached):
			return 0, errDetached
		case !errors.Is(err, client.ErrUnreachable), !again, ctx.Err() != nil, time.Since(since) > attachAgain:
			return code, err
		}
		if tasks.Sleep(ctx, 100*time.Millisecond) != nil {
			return 0, ctx.Err()
		}
	}
}

// errDetached means that the user has left a command.
var errDetached = errors.New("detached")

// relay gives the input of a terminal to one connection after the other.
type relay struct {
	in      io.Reader
	leave   func() // called at Ctrl-P Ctrl-Q, if escapes is set
	escapes bool

	now  *io.PipeReader      // of the last connection
	ends chan *io.PipeWriter // of the next one
}

// next returns the input for the next connection. The bytes that the last connection has
// taken may be lost.
func (r *relay) next() io.Reader {
	if r.ends == nil {
		r.ends = make(chan *io.PipeWriter, 1)
		go r.copy()
	} else {
		r.now.Close() // copy goes on with the next one
	}
	in, out := io.Pipe()
	r.now = in
	r.ends <- out
	return in
}

// copy copies until the input ends, or the user leaves.
func (r *relay) copy() {
	out := <-r.ends
	buf := make([]byte, 4096)
	var before byte
	for {
		n, err := r.in.Read(buf)
		for _, b := range buf[:n] {
			if r.escapes && before == ctrlP && b == ctrlQ {
				r.leave()
				return
			}
			before = b
		}
		for _, werr := out.Write(buf[:n]); werr != nil; _, werr = out.Write(buf[:n]) {
			out = <-r.ends
		}
		if err != nil {
			out.Close()
			return
		}
	}
}

// The keys that end attach.
const (
	ctrlP = 'p' & 0x1f
	ctrlQ = 'q' & 0x1f
)
