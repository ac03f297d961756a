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

// newOutputs returns the function for the output of one of n runs: the runner's own for
// one run, else line writers that prefix the run's index.
func newOutputs(r *Runner, n int) func(run int) output {
	if r.Output != nil {
		return func(run int) (o output) {
			o.stdout, o.stderr = r.Output(run)
			return o
		}
	}
	if n == 1 {
		return func(int) output { return output{stdout: r.Stdout, stderr: r.Stderr} }
	}
	prefixed := NewPrefixed(r.Stdout, r.Stderr)
	return func(run int) output { return prefixed.output(fmt.Sprintf("%*d | ", len(fmt.Sprint(n-1)), run)) }
}

// Prefixed writes the output of several runs line by line. Each line has a prefix, and is
// not interrupted by the lines of other runs.
type Prefixed struct {
	stdout, stderr io.Writer
	mu             *sync.Mutex // both may be the same terminal
}

// NewPrefixed returns a Prefixed that writes to these, which may be nil.
func NewPrefixed(stdout, stderr io.Writer) Prefixed { return Prefixed{stdout, stderr, new(sync.Mutex)} }

// Output returns the outputs of a run. One goroutine may use each. flush writes unfinished
// lines; it is called after the last write.
func (p Prefixed) Output(prefix string) (stdout, stderr io.Writer, flush func()) {
	o := p.output(prefix)
	return o.stdout, o.stderr, o.flush
}

func (p Prefixed) output(prefix string) (o output) {
	for _, s := range []struct {
		to   io.Writer
		from *io.Writer
	}{{p.stdout, &o.stdout}, {p.stderr, &o.stderr}} {
		if s.to != nil {
			l := &lines{mu: p.mu, to: s.to, prefix: prefix}
			*s.from = l
			o.lines = append(o.lines, l)
		}
	}
	return o
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
