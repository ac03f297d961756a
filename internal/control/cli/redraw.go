package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// redrawEvery is the interval of redrawing the progress.
const redrawEvery = 100 * time.Millisecond

// redraw calls draw a few times a second until end is called. end returns when the last
// call has returned.
func redraw(draw func()) (end func()) {
	stop := make(chan struct{})
	var drawing sync.WaitGroup
	drawing.Go(func() {
		t := time.NewTicker(redrawEvery)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				draw()
			}
		}
	})
	return func() {
		close(stop)
		drawing.Wait()
	}
}

// picture shows lines on a terminal, and redraws them until it is closed. A nil *picture
// shows nothing.
type picture struct {
	terminal *os.File
	canvas   canvas
	end      func()
}

// newPicture shows the lines that frame returns for a terminal of a size. Each has to be
// shorter than the width.
func newPicture(f *os.File, frame func(width, height int) []string) *picture {
	p := &picture{terminal: f}
	p.end = redraw(func() { p.draw(frame) })
	return p
}

func (p *picture) draw(frame func(width, height int) []string) {
	width, height, err := term.GetSize(int(p.terminal.Fd()))
	if err != nil || width < 1 || height < 1 {
		width, height = 80, 24
	}
	out := p.canvas.draw(frame(width, height), width, height)
	_, _ = io.WriteString(p.terminal, out) // an error of the terminal is ignored
}

// close ends the picture and erases it.
func (p *picture) close() {
	if p == nil {
		return
	}
	p.end()
	p.draw(func(int, int) []string { return nil })
}

// canvas draws lines over its last lines, in one write and without erasing them first,
// which would flicker.
type canvas struct {
	drawn []string
}

// draw returns the control sequences that show the lines on a terminal of this size
// (ECMA-48: CUU, EL, ED). A terminal that has become narrower has wrapped the last
// drawing.
func (c *canvas) draw(lines []string, width, height int) string {
	rows := 0
	for _, l := range c.drawn {
		rows += max(1, (utf8.RuneCountInString(l)+width-1)/width)
	}
	var out strings.Builder
	if rows = min(rows, height-1); rows > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", rows)
	}
	out.WriteString("\r")
	for _, l := range lines {
		out.WriteString(l)
		out.WriteString("\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	c.drawn = lines
	return out.String()
}

// narrow shortens a line so that the terminal does not wrap it.
func narrow(line string, width int) string {
	if utf8.RuneCountInString(line) < width {
		return line
	}
	return string([]rune(line)[:width-1])
}
