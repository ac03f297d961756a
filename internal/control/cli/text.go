package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"holdfast"
)

// shortID returns the part of a container's id that users type.
func shortID(id string) string { return dash(id[:min(len(id), 12)]) }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return clean(s)
}

// age formats the time since an event, in its largest unit.
func age(now, then time.Time) string {
	d := now.Sub(then)
	switch {
	case then.IsZero():
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format(time.RFC3339)
}

// texts converts the names of an enumeration.
func texts[T ~string](names []T) []string {
	var out []string
	for _, n := range names {
		out = append(out, string(n))
	}
	return out
}

// firstFew joins the first five texts, and "…" if there are more.
func firstFew(all []string, separator string) string {
	const most = 5
	if len(all) > most {
		all = append(all[:most:most], "…")
	}
	return strings.Join(all, separator)
}

// printEach prints a line for each text, behind a label.
func printEach(w io.Writer, label string, texts []string) {
	for _, t := range texts {
		fmt.Fprintf(w, "%s: %s\n", label, clean(t))
	}
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// leftLine describes a container that could not be killed.
func leftLine(l holdfast.Leftover) string {
	s := fmt.Sprintf("%s (container %s)", dash(l.Name), shortID(l.ContainerID))
	if len(l.Pids) > 0 {
		s += " pids " + strings.Trim(strings.ReplaceAll(fmt.Sprint(l.Pids), " ", ", "), "[]")
	}
	return s + ": " + clean(l.Reason)
}

// leftError names what was left behind; it is nil if nothing was.
func leftError(left []holdfast.Leftover) error {
	if len(left) == 0 {
		return nil
	}
	var names []string
	for _, l := range left {
		names = append(names, leftLine(l))
	}
	return Partial(fmt.Errorf("%s left behind: %s", count(len(left), "container"), firstFew(names, "; ")),
		"find what blocks the processes (`ps -o pid,stat,wchan,args -p PID`), then try again")
}
