package job

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// output is where the steps of one run write.
type output struct {
	stdout, stderr io.Writer
	lines          []*lines // to be flushed after each step
}

func (o output) flush() {
	for _, l := range o.lines {
		l.flush()
	}
}

// newOutputs returns the outputs of n runs: the runner's own for one run, else
// line writers that prefix the run's index.
func newOutputs(r *Runner, n int) []output {
	if n == 1 {
		return []output{{stdout: r.Stdout, stderr: r.Stderr}}
	}
	var both sync.Mutex // stdout and stderr may be the same terminal
	var out []output
	for i := range n {
		prefix := fmt.Sprintf("%*d | ", len(fmt.Sprint(n-1)), i)
		o := output{}
		for _, s := range []struct {
			to   io.Writer
			from *io.Writer
		}{{r.Stdout, &o.stdout}, {r.Stderr, &o.stderr}} {
			if s.to != nil {
				l := &lines{mu: &both, to: s.to, prefix: prefix}
				*s.from = l
				o.lines = append(o.lines, l)
			}
		}
		out = append(out, o)
	}
	return out
}

// maxLine is the number of bytes of an unfinished line that are buffered.
const maxLine = 64 << 10

// lines writes whole lines, each with a prefix. One goroutine uses it; several
// lines values with the same mu write to the same place.
type lines struct {
	mu     *sync.Mutex
	to     io.Writer
	prefix string
	rest   []byte // an unfinished line
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	var whole []byte
	for {
		end := bytes.IndexByte(l.rest, '\n') + 1
		if end == 0 {
			if len(l.rest) < maxLine {
				break
			}
			end = maxLine
		}
		whole = l.prefixed(whole, l.rest[:end])
		l.rest = l.rest[end:]
	}
	if len(whole) == 0 {
		return len(p), nil
	}
	if err := l.write(whole); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (l *lines) prefixed(to, line []byte) []byte {
	to = append(append(to, l.prefix...), line...)
	if line[len(line)-1] != '\n' {
		to = append(to, '\n')
	}
	return to
}

func (l *lines) write(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.to.Write(b)
	return err
}

// flush writes an unfinished line. Write reports errors.
func (l *lines) flush() {
	if len(l.rest) > 0 {
		_ = l.write(l.prefixed(nil, l.rest))
		l.rest = nil
	}
}
