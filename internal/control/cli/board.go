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

// Of a long replacement a terminal shows so many lines at most.
const (
	boardEnded    = 6
	boardUnderWay = 8
)

// board shows on stderr how a replacement of sessions goes: on a terminal as a
// table that is drawn anew and wiped at the end, elsewhere a line for each
// session as it ends.
type board struct {
	lines    io.Writer // nil: nothing is said
	terminal *os.File  // nil: there is none

	mu       sync.Mutex
	ended    []holdfast.Replacement // the last few
	count    int                    // of all that have ended
	underWay []begun
	drawn    int // lines of the last drawing

	drawing redrawing
}

type begun struct {
	row  holdfast.Replacement
	when time.Time
}

// board begins to show. The caller must close it before anything else is
// printed.
func (u *ui) board() *board {
	b := &board{}
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

// step takes in that a replacement began or ended.
func (b *board) step(ended bool, r holdfast.Replacement) {
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
	b.ended = b.ended[max(0, len(b.ended)-boardEnded):]
	if b.lines == nil {
		return
	}
	if r.Error != "" {
		fmt.Fprintf(b.lines, "%s failed on %s: %s\n", r.Key, dash(string(r.From)), clean(r.Error))
		return
	}
	fmt.Fprintf(b.lines, "%s: %s → %s in %s\n", r.Key, dash(string(r.From)), dash(string(r.To)), r.Total)
}

func (b *board) draw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, replacementHead)
	for _, r := range b.ended {
		fmt.Fprintln(t, replacementRow(r, phaseText(r.Total)))
	}
	for i, u := range b.underWay {
		if i == boardUnderWay {
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
	_, _ = io.WriteString(b.terminal, out) // a terminal that is gone needs no picture
}

// erase wipes what was drawn last (ECMA-48: cursor up, erase below).
func (b *board) erase() string {
	if b.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", b.drawn)
}

// narrow cuts a line so that the terminal does not wrap it.
func narrow(line string, width int) string {
	if utf8.RuneCountInString(line) < width {
		return line
	}
	return string([]rune(line)[:width-1])
}

func (b *board) close() {
	b.drawing.end()
	if b.terminal != nil {
		_, _ = io.WriteString(b.terminal, b.erase())
	}
}
