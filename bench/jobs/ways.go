package jobs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/bench"
)

// word is the output of each run.
const word = "hello"

// wayLimit bounds one job.
const wayLimit = 5 * time.Minute

// times are those of one job, from its beginning: to the last run's output, and to the end of
// the command, with all containers removed.
type times struct{ output, end time.Duration }

// output counts the words of a command's standard output, and records when the last came.
type output struct {
	begun time.Time

	mu   sync.Mutex
	last time.Duration
	b    bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Since(o.begun)
	return o.b.Write(p)
}

func (x *experiment) run(ctx context.Context) (bench.Result, error) {
	machine, err := x.machine(ctx)
	if err != nil {
		return bench.Result{}, err
	}
	n := strconv.Itoa(x.o.N)
	ways := []struct {
		name string
		run  func(context.Context) (times, error)
	}{
		{n + " × docker run", x.peers},
		{"one host", func(ctx context.Context) (times, error) { return x.job(ctx) }},
		{fmt.Sprintf("fleet of %d", x.o.Nodes), func(ctx context.Context) (times, error) { return x.job(ctx, "--fleet") }},
	}
	last, end := make([][]float64, len(ways)), make([][]float64, len(ways))
	const warmups = 1
	for round := range x.o.Rounds + warmups {
		fmt.Fprintf(x.o.Progress, "%d of %d jobs of each way\n", max(0, round-warmups), x.o.Rounds)
		for k := range ways {
			w := (round + k) % len(ways) // the order rotates each turn
			t, err := ways[w].run(ctx)
			if err != nil {
				return bench.Result{}, fmt.Errorf("%s: %w", ways[w].name, err)
			}
			if round >= warmups {
				last[w], end[w] = append(last[w], millis(t.output)), append(end[w], millis(t.end))
			}
		}
	}
	r := bench.Result{Name: "jobs", Machine: machine, Failed: x.failed}
	for w := range ways {
		r.Rows = append(r.Rows, bench.NewRow(ways[w].name+", to the last output", "ms", last[w]), bench.NewRow(ways[w].name+", to the end", "ms", end[w]))
	}
	r.Score = r.Rows[3].P50 / r.Rows[5].P50
	r.Notes = append(r.Notes, fmt.Sprintf("a job of %d runs, image present; all nodes share one engine, so that the ratio shows what placement and the way over the network cost", x.o.N))
	return r, nil
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// peers starts as many containers by docker run at once, on the same engine.
func (x *experiment) peers(ctx context.Context) (times, error) {
	out := &output{begun: time.Now()}
	g, ctx := errgroup.WithContext(ctx)
	for range x.o.N {
		g.Go(func() error {
			return x.command(ctx, out, "DOCKER_HOST="+x.lab.Host(), x.docker, "run", "--rm", image, "echo", word)
		})
	}
	err := g.Wait()
	return x.judge(out), err
}

// job runs the job by holdfast run.
func (x *experiment) job(ctx context.Context, options ...string) (times, error) {
	out := &output{begun: time.Now()}
	argv := append([]string{x.o.Program, "run", "--socket", x.first.Socket}, options...)
	argv = append(argv, "-n", strconv.Itoa(x.o.N), image, "--", "echo", word)
	err := x.command(ctx, out, "HOLDFAST_CONFIG="+x.first.Config, argv...)
	return x.judge(out), err
}

// judge counts the runs without their output.
func (x *experiment) judge(o *output) times {
	t := times{o.last, time.Since(o.begun)}
	x.failed += max(0, x.o.N-strings.Count(o.b.String(), word))
	return t
}

// command runs a command to its end, with a variable of the environment.
func (x *experiment) command(ctx context.Context, out *output, variable string, argv ...string) error {
	ctx, cancel := context.WithTimeout(ctx, wayLimit)
	defer cancel()
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), variable)
	cmd.Stdout, cmd.Stderr = out, &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, errs.Bytes())
	}
	return nil
}
