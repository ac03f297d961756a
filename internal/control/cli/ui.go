package cli

// Output rules, for every command:
//
//   - stdout has the result and nothing else: text, or with --json one object or
//     array. It is written when it is complete, except for streams (logs, exec,
//     the steps of a drain).
//   - stderr has everything else. An error is one line "error: …" and, if there
//     is advice, one line "hint: …" after it. A container's last lines come
//     before them, each behind "  | ".
//   - Long work shows its progress on stderr: on a terminal on one line that is
//     redrawn with the elapsed time and erased at the end (a replacement: as a
//     table), elsewhere as one line when it begins. With --json there is no
//     progress.
//   - Text from outside (errors, log lines, names) goes through clean before it
//     is printed: no foreign control character reaches the terminal. `logs` and
//     `exec` pass a container's output on as it is.
//   - Tables have a head in capitals and "-" for an empty cell. Times are ages
//     in tables, and RFC 3339 in details.

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

// result prints a result: v with --json, otherwise the output of text.
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

// show prints the value that a call returned, as result does. It passes on the call's
// error.
func show[T any](u *ui, v T, err error, text func(io.Writer, T)) error {
	if err != nil {
		return err
	}
	return u.result(v, func(w io.Writer) { text(w, v) })
}

// note prints a line beside the result.
func (u *ui) note(format string, a ...any) {
	if !u.json {
		fmt.Fprintf(u.err, format+"\n", a...)
	}
}

// fail prints an error, unless it was already printed.
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

// messageOf returns the text of an error.
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

// hintFor returns advice for an error without a hint of its own.
func hintFor(err error) string {
	switch {
	case errors.Is(err, holdfast.ErrEngine):
		return "is the container engine running? check with `docker info`"
	case errors.Is(err, holdfast.ErrStore):
		return "the agent's log has the error of the store"
	case errors.Is(err, holdfast.ErrDraining):
		return "`holdfast node uncordon` lets the node accept sessions again"
	case errors.Is(err, holdfast.ErrBusy):
		return "try again in a moment"
	case errors.Is(err, holdfast.ErrNotFound):
		return "`holdfast session ls` lists the sessions"
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

// progress shows that long work has begun. The caller must call done when it has ended,
// before it prints anything else.
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
	end := redraw(func() { fmt.Fprintf(f, "\r\x1b[K%s… %.1fs", what, time.Since(begin).Seconds()) })
	return func() {
		end()
		fmt.Fprint(f, "\r\x1b[K")
	}
}

// steps shows work of several steps. step begins the next step, and the caller must call
// done when the last one has ended.
func (u *ui) steps() (step func(what string), done func()) {
	end := func() {}
	step = func(what string) {
		end()
		end = u.progress(what)
	}
	return step, func() { end() }
}
