package bench

import (
	"bufio"
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// loadChild is a process that keeps all CPUs busy.
type loadChild struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startLoad(ctx context.Context, command []string) (*loadChild, error) {
	c := &loadChild{cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	c.cmd.Stderr = os.Stderr
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the load: %w", err)
	}
	return c, nil
}

// stop ends the load and waits for its exit.
func (c *loadChild) stop() error {
	err := c.in.Close()
	return errors.Join(err, c.cmd.Wait())
}

// done returns the amount of work done so far.
func (c *loadChild) done() (int, error) {
	if _, err := c.in.Write([]byte("\n")); err != nil {
		return 0, err
	}
	var n int
	_, err := fmt.Fscanln(c.out, &n)
	return n, err
}

// rate returns the amount of work per second while f runs.
func (c *loadChild) rate(_ context.Context, do func() error) (float64, error) {
	before, err := c.done()
	if err != nil {
		return 0, fmt.Errorf("read the load's progress: %w", err)
	}
	begin := time.Now()
	if err := do(); err != nil {
		return 0, err
	}
	after, err := c.done()
	if err != nil {
		return 0, fmt.Errorf("read the load's progress: %w", err)
	}
	return float64(after-before) / time.Since(begin).Seconds(), nil
}

// DoctorLoad is DoctorOptions.Load. It keeps all CPUs busy with the work of a typical
// service, in user space and in the kernel. For each line that it reads it prints the
// amount of work done. It returns at EOF.
func DoctorLoad(_ context.Context, _ []string, in io.Reader, out io.Writer) error {
	var done atomic.Int64
	var stop atomic.Bool
	var working sync.WaitGroup
	errs := make([]error, runtime.NumCPU())
	for i := range errs {
		working.Go(func() {
			for !stop.Load() && errs[i] == nil {
				errs[i] = serve()
				done.Add(1)
			}
		})
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fmt.Fprintln(out, done.Load())
	}
	stop.Store(true)
	working.Wait()
	return errors.Join(append(errs, lines.Err())...)
}

// order is a request's body.
type order struct {
	ID    int               `json:"id"`
	Lines []string          `json:"lines"`
	Tags  map[string]string `json:"tags"`
}

// serve does the work of one request.
func serve() error {
	o := order{ID: 7, Lines: strings.Fields("one two three four five six seven eight"), Tags: map[string]string{"shop": "north", "kind": "test"}}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var back order
	if err := json.Unmarshal(text, &back); err != nil {
		return err
	}
	if !regexp.MustCompile(`"id":\s*(\d+)`).Match(text) {
		return errors.New("the order has no id")
	}
	var packed bytes.Buffer
	z, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		return err
	}
	_, err = z.Write(bytes.Repeat(text, 8))
	if err := errors.Join(err, z.Close()); err != nil {
		return err
	}
	sha256.Sum256(packed.Bytes())
	if _, err := os.ReadFile("/proc/self/stat"); err != nil {
		return err
	}
	if _, err := os.ReadDir("/etc"); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	_, err2 := r.Read(text)
	return errors.Join(err, err2, r.Close(), w.Close())
}

// DoctorFold is DoctorOptions.Fold. It reads the output of perf script, folds it to one
// line per stack as stackcollapse-perf.pl does, and prints these lines. The last line
// is the number of samples.
func DoctorFold(_ context.Context, _ []string, in io.Reader, out io.Writer) error {
	stacks := make(map[string]int)
	samples := 0
	var command string
	var frames []string
	end := func() {
		if command == "" {
			return
		}
		// The innermost frame is first in perf's output and last in a folded line.
		var folded strings.Builder
		folded.WriteString(command)
		for i := len(frames) - 1; i >= 0; i-- {
			folded.WriteByte(';')
			folded.WriteString(frames[i])
		}
		stacks[folded.String()]++
		samples++
		command, frames = "", frames[:0]
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "":
			end()
		case line[0] != ' ' && line[0] != '\t':
			end()
			command = strings.Fields(line)[0]
		default: // "  ffffffff8159a2b0 generic_fadvise+0x40 ([kernel.kallsyms])"
			_, name, _ := strings.Cut(strings.TrimLeft(line, " \t"), " ")
			if at := strings.LastIndex(name, " ("); at >= 0 {
				name = name[:at]
			}
			if at := strings.LastIndex(name, "+0x"); at >= 0 {
				name = name[:at]
			}
			frames = append(frames, name)
		}
	}
	end()
	if err := lines.Err(); err != nil {
		return err
	}
	w := bufio.NewWriter(out)
	for stack, n := range stacks {
		fmt.Fprintf(w, "%s %d\n", stack, n)
	}
	fmt.Fprintln(w, samples)
	return w.Flush()
}
