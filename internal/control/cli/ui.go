package cli

// Output rules, for every command:
//
//   - stdout has the result and nothing else: text for people, or with --json
//     one object or array. It is written when it is whole, except for what
//     streams (logs, exec, the steps of a drain).
//   - stderr has everything else. An error is one line "error: …" and, where
//     there is something to do about it, one line "hint: …" after it. A
//     container's last lines come before them, each behind "  | ".
//   - Long work says on stderr what it does: on a terminal on one line that is
//     drawn anew with the time so far and wiped at the end (a replacement: as
//     a table), elsewhere as one line when it begins. With --json it says
//     nothing.
//   - What others wrote (errors, log lines, names) goes through clean where we
//     print it: no control character of theirs reaches the terminal. `logs`
//     and `exec` pass a container's output on as it is, which is their job.
//   - Tables have a head in capitals and "-" where there is nothing. Times are
//     ages in tables, and RFC 3339 in details.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/job"
)

type ui struct {
	in       io.Reader
	out, err io.Writer
	json     bool
}

func newUI(in io.Reader, out, err io.Writer) *ui { return &ui{in: in, out: out, err: err} }

// terminal returns the file behind a stream if it is a terminal.
func terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// result prints a result: v with --json, else what text writes.
func (u *ui) result(v any, text func(io.Writer)) error {
	var b bytes.Buffer
	if u.json {
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		if err := e.Encode(v); err != nil {
			return err
		}
	} else {
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		text(t)
		t.Flush()
	}
	if _, err := u.out.Write(b.Bytes()); err != nil {
		return fmt.Errorf("printing the result: %w", err)
	}
	return nil
}

// note prints a line beside the result.
func (u *ui) note(format string, a ...any) {
	if !u.json {
		fmt.Fprintf(u.err, format+"\n", a...)
	}
}

// fail prints an error, if there is something to print about it.
func (u *ui) fail(err error) {
	var s status
	if err == nil || errors.As(err, &s) {
		return
	}
	for l := range strings.Lines(logOf(err)) {
		fmt.Fprintf(u.err, "  | %s\n", clean(strings.TrimRight(l, "\r\n")))
	}
	fmt.Fprintf(u.err, "error: %s\n", clean(messageOf(err)))
	hint := holdfast.HintOf(err)
	if hint == "" {
		hint = hintFor(err)
	}
	if hint != "" {
		fmt.Fprintf(u.err, "hint: %s\n", clean(hint))
	}
}

// messageOf is an error as a person is told it.
func messageOf(err error) string {
	if errors.Is(err, context.Canceled) && exitCode(err) == exitInterrupted {
		return "interrupted"
	}
	return err.Error()
}

// logOf returns the container's last lines that come with an error.
func logOf(err error) string {
	var wire *api.Error
	var boot *holdfast.BootError
	var member *job.ContainerError
	switch {
	case errors.As(err, &wire):
		return wire.Log
	case errors.As(err, &boot):
		return boot.Log
	case errors.As(err, &member):
		return member.Log
	}
	return ""
}

// hintFor is what to do about an error that does not say so itself.
func hintFor(err error) string {
	switch {
	case errors.Is(err, holdfast.ErrEngine):
		return "is the container engine running? `docker info` asks it"
	case errors.Is(err, holdfast.ErrStore):
		return "the agent's log says what is wrong with its store"
	case errors.Is(err, holdfast.ErrDraining):
		return "`holdfast node uncordon` makes the node take sessions again"
	case errors.Is(err, holdfast.ErrBusy):
		return "try again in a moment"
	case errors.Is(err, holdfast.ErrNotFound):
		return "`holdfast session ls` shows the sessions there are"
	}
	return ""
}

// clean makes text one line without control characters.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '\uFFFD'
		}
		return r
	}, strings.TrimSpace(s))
}

// progress says that long work has begun. The caller must call done when it has
// ended, before it prints anything else.
func (u *ui) progress(what string) (done func()) {
	f, tty := terminal(u.err)
	switch {
	case u.json:
		return func() {}
	case !tty:
		fmt.Fprintf(u.err, "%s…\n", what)
		return func() {}
	}
	begin := time.Now()
	var drawing redrawing
	drawing.begin(func() { fmt.Fprintf(f, "\r\x1b[K%s… %.1fs", what, time.Since(begin).Seconds()) })
	return func() {
		drawing.end()
		fmt.Fprint(f, "\r\x1b[K")
	}
}
