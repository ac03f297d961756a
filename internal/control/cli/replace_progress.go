package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"holdfast"
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
	lines    io.Writer // nil: no output
	terminal *os.File  // nil: not a terminal

	mu       sync.Mutex
	ended    []holdfast.Replacement // the last few
	count    int                    // number of all that have ended
	underWay []begun
	drawn    int // lines of the last drawing

	drawing redrawing
}

type begun struct {
	row  holdfast.Replacement
	when time.Time
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
	b.terminal = f
	b.drawing.begin(b.draw)
	return b
}

// step adds a replacement that began or ended.
func (b *replaceProgress) step(ended bool, r holdfast.Replacement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !ended {
		b.underWay = append(b.underWay, begun{r, time.Now()})
		return
	}
	for i, u := range b.underWay {
		if u.row.Key == r.Key {
			b.underWay = append(b.underWay[:i], b.underWay[i+1:]...)
			break
		}
	}
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

func (b *replaceProgress) draw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, replacementHead)
	for _, r := range b.ended {
		fmt.Fprintln(t, replacementRow(r, phaseText(r.Total)))
	}
	for i, u := range b.underWay {
		if i == shownUnderWay {
			break
		}
		fmt.Fprintln(t, replacementRow(u.row, fmt.Sprintf("%.1fs…", time.Since(u.when).Seconds())))
	}
	t.Flush()
	fmt.Fprintf(&text, "%d done, %d under way\n", b.count, len(b.underWay))
	width, _, err := term.GetSize(int(b.terminal.Fd()))
	if err != nil || width < 1 {
		width = 80
	}
	out := b.erase()
	b.drawn = 0
	for line := range strings.Lines(text.String()) {
		out += narrow(strings.TrimRight(line, "\n"), width) + "\n"
		b.drawn++
	}
	_, _ = io.WriteString(b.terminal, out) // an error of the terminal is ignored
}

// erase erases the last drawing (ECMA-48: cursor up, erase below).
func (b *replaceProgress) erase() string {
	if b.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", b.drawn)
}

// narrow shortens a line so that the terminal does not wrap it.
func narrow(line string, width int) string {
	if utf8.RuneCountInString(line) < width {
		return line
	}
	return string([]rune(line)[:width-1])
}

func (b *replaceProgress) close() {
	b.drawing.end()
	if b.terminal != nil {
		_, _ = io.WriteString(b.terminal, b.erase())
	}
}
