package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// Limits of the lines on a terminal during a long replacement.
const (
	shownEnded    = 6
	shownUnderWay = 8
)

// replaceProgress shows the progress of a replacement of sessions on stderr. On a terminal
// it is a table that is redrawn, and erased at the end. Elsewhere it is a line for each
// session that has ended.
type replaceProgress struct {
	*picture           // nil: not a terminal
	lines    io.Writer // nil: no output

	mu       sync.Mutex
	ended    []holdfast.Replacement // the last few
	count    int                    // number of all that have ended
	underWay []underWayRow
}

type underWayRow struct {
	row  holdfast.Replacement
	when time.Time
	now  string // phase of a replica, "" for another session
}

// replaceProgress begins to show the progress. The caller must close it before it prints
// anything else.
func (u *ui) replaceProgress() *replaceProgress {
	b := &replaceProgress{}
	if u.json {
		return b
	}
	f, tty := terminal(u.err)
	if !tty {
		b.lines = u.err
		fmt.Fprintln(u.err, "replacing…")
		return b
	}
	b.picture = newPicture(f, b.frame)
	return b
}

// step adds a line of the answer.
func (b *replaceProgress) step(ev api.ReplaceEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case ev.Began != nil:
		b.underWay = append(b.underWay, underWayRow{row: *ev.Began, when: time.Now()})
	case ev.Progress != nil:
		b.phase(*ev.Progress)
	case ev.Ended != nil:
		b.end(*ev.Ended)
	}
}

// phase adds what a replica waits for.
func (b *replaceProgress) phase(p api.ReplaceProgress) {
	now := string(p.Phase)
	if p.Text != "" {
		now += ": " + clean(p.Text)
	}
	for i, u := range b.underWay {
		if u.row.Key == p.Key {
			b.underWay[i].now = now
		}
	}
	if b.lines != nil {
		fmt.Fprintf(b.lines, "%s → %s: %s\n", p.Old, p.Key, now)
	}
}

func (b *replaceProgress) end(r holdfast.Replacement) {
	b.underWay = slices.DeleteFunc(b.underWay, func(u underWayRow) bool { return u.row.Key == r.Key })
	b.count++
	b.ended = append(b.ended, r)
	b.ended = b.ended[max(0, len(b.ended)-shownEnded):]
	if b.lines == nil {
		return
	}
	if r.Error != "" {
		fmt.Fprintf(b.lines, "%s failed on %s: %s\n", r.Key, dash(string(r.From)), clean(r.Error))
		return
	}
	fmt.Fprintf(b.lines, "%s: %s → %s in %s\n", r.Key, dash(string(r.From)), dash(string(r.To)), r.Total)
}

func (b *replaceProgress) frame(width, _ int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	shown := phasesOf(b.ended)
	fmt.Fprintln(t, replacementHead(shown))
	for _, r := range b.ended {
		fmt.Fprintln(t, replacementRow(r, shown, phaseText(r.Total)))
	}
	for _, u := range b.underWay[:min(len(b.underWay), shownUnderWay)] {
		line := replacementRow(u.row, shown, fmt.Sprintf("%.1fs…", time.Since(u.when).Seconds()))
		if u.now != "" {
			line = strings.TrimSuffix(line, "-") + u.now // in place of the error
		}
		fmt.Fprintln(t, line)
	}
	t.Flush()
	fmt.Fprintf(&text, "%d done, %d under way\n", b.count, len(b.underWay))
	var lines []string
	for line := range strings.Lines(text.String()) {
		lines = append(lines, narrow(strings.TrimRight(line, "\n"), width))
	}
	return lines
}
