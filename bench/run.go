package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"holdfast"
	"holdfast/test/lab"
	"holdfast/test/lab/registry"
)

// RunOptions configures `holdfast bench run`.
type RunOptions struct {
	N int // jobs of each kind; 0 is 10
	// Size is the size of each of the four images in MiB; 0 is 32.
	Size int
	// Rate limits the registry to that many MiB/s for all pulls together. 0 is no
	// limit: then the engine's extraction is the bottleneck.
	Rate float64
	// Holdfast is the command line that runs a job: the program holdfast with the
	// argument run. The bench appends -f FILE. HOLDFAST_CONFIG names its
	// configuration.
	Holdfast []string
	Progress io.Writer // receives progress lines; nil discards them
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o RunOptions) Check() error {
	switch {
	case o.N < 1:
		return fmt.Errorf("jobs is %d, it must be at least 1", o.N)
	case o.Size < 1 || o.Size > 1024:
		return fmt.Errorf("images have %d MiB, they must have 1 to 1024", o.Size)
	case !(o.Rate >= 0):
		return fmt.Errorf("the registry's rate is %v MiB/s, it must be 0 (no limit) or more", o.Rate)
	}
	return nil
}

// Names of the rows.
const (
	rowComposeUp   = "docker-compose up -d"
	rowComposePull = "docker-compose pull && up -d"
	rowHoldfastRun = "holdfast run, to the step's first byte"
	rowComposeAll  = "docker-compose up -d && down"
	rowHoldfastAll = "holdfast run, to its end"
)

const (
	runImages  = 4
	runWarmups = 1 // of each kind, not counted
	runLimit   = 10 * time.Minute
)

// Run measures in turns how docker-compose and `holdfast run` bring up one job of four
// images with two layers each, from a registry on loopback. The images are removed
// after each. It measures the time until all four containers run: for docker-compose
// until `up -d` returns, for Holdfast until the step has written its first byte, for
// which everything must be up. The rows with the removal measure both to their end. It
// works only inside a lab (lab.Reenter).
//
// Score is the p50 of `docker-compose up -d` ÷ Holdfast's.
func Run(ctx context.Context, o RunOptions) (Result, error) {
	o.N, o.Size = cmp.Or(o.N, 10), cmp.Or(o.Size, 32)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	x, err := newRunBench(ctx, o)
	return conduct(ctx, x, err)
}

// runBench is one run of the experiment.
type runBench struct {
	pulling
	o       RunOptions
	docker  string // the programs
	compose string
	proxy   *registry.Proxy // nil without a rate
	images  []string
	failed  int
}

func newRunBench(ctx context.Context, o RunOptions) (*runBench, error) {
	x := &runBench{o: o}
	var err error
	if x.docker, err = exec.LookPath("docker"); err != nil {
		return x, holdfast.WithHint(fmt.Errorf("docker, which removes the images, is not installed: %w", err), "apt-get install docker.io")
	}
	if x.compose, err = exec.LookPath("docker-compose"); err != nil {
		return x, holdfast.WithHint(fmt.Errorf("the peer docker-compose is not installed: %w", err), "make bench-tools, or apt-get install docker-compose")
	}
	if err := x.open(ctx, lab.Options{}); err != nil {
		return x, err
	}
	host := x.registry.Host()
	if o.Rate > 0 {
		if x.proxy, err = registry.StartProxy(x.registry); err != nil {
			return x, err
		}
		x.proxy.Set(registry.Faults{Rate: o.Rate * (1 << 20)})
		host = x.proxy.Host()
	}
	if err := x.push(ctx, host); err != nil {
		return x, err
	}
	return x, x.configure()
}

// push makes the images, each with a large layer and a small one, and the programs.
func (x *runBench) push(ctx context.Context, host string) error {
	fmt.Fprintf(x.o.Progress, "making %d images of %d MiB\n", runImages, x.o.Size)
	for i := range runImages {
		size := int64(x.o.Size) << 20
		image, err := registry.Runnable(runtime.GOARCH, uint64(i), 1000,
			registry.Layer{Seed: uint64(2 * i), Size: size * 3 / 4}, registry.Layer{Seed: uint64(2*i + 1), Size: size / 4})
		if err != nil {
			return err
		}
		tag := fmt.Sprintf("bench/run-%d:1", i)
		if _, err := x.registry.Push(ctx, image, tag, registry.Options{}); err != nil {
			return err
		}
		x.images = append(x.images, host+"/"+tag)
	}
	return nil
}

// configure writes the job in both formats.
func (x *runBench) configure() error {
	var job, services strings.Builder
	for i, image := range x.images {
		fmt.Fprintf(&job, "  - {name: part-%d, image: %q", i, image)
		if i == 0 {
			fmt.Fprintf(&job, ", command: [%s]", registry.Pause)
		}
		fmt.Fprint(&job, "}\n")
		fmt.Fprintf(&services, "  part-%d: {image: %q}\n", i, image)
	}
	for name, text := range map[string]string{
		"holdfast.yaml":       x.config(),
		"job.yaml":            fmt.Sprintf("images:\n%ssteps: [{command: [%s]}]\n", &job, registry.Say),
		"docker-compose.yaml": fmt.Sprintf("version: \"3\"\nservices:\n%s", &services),
	} {
		if err := os.WriteFile(filepath.Join(x.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (x *runBench) close() error {
	var err error
	if x.proxy != nil {
		err = x.proxy.Stop()
	}
	return errors.Join(err, x.pulling.close())
}

// jobTimes are the times until all of a job was up, and until all was removed.
type jobTimes struct{ up, all time.Duration }

func (x *runBench) run(ctx context.Context) (Result, error) {
	machine, err := x.machine(ctx)
	if err != nil {
		return Result{}, err
	}
	kinds := []func(context.Context) (jobTimes, error){
		func(ctx context.Context) (jobTimes, error) { return x.composed(ctx, false) },
		func(ctx context.Context) (jobTimes, error) { return x.composed(ctx, true) },
		x.held,
	}
	up, all := make([][]float64, len(kinds)), make([][]float64, len(kinds))
	for i := range x.o.N + runWarmups {
		fmt.Fprintf(x.o.Progress, "%d of %d jobs of each kind\n", max(0, i-runWarmups), x.o.N)
		for n := range kinds {
			k := (i + n) % len(kinds) // the order rotates each turn
			t, err := kinds[k](ctx)
			if err == nil {
				err = x.remove(ctx)
			}
			if err != nil {
				return Result{}, err
			}
			if i >= runWarmups {
				up[k], all[k] = append(up[k], millis(t.up)), append(all[k], millis(t.all))
			}
		}
	}
	r := Result{
		Name:    "run",
		Machine: machine,
		Rows: []Row{NewRow(rowComposeUp, "ms", up[0]), NewRow(rowComposePull, "ms", up[1]), NewRow(rowHoldfastRun, "ms", up[2]),
			NewRow(rowComposeAll, "ms", all[0]), NewRow(rowHoldfastAll, "ms", all[2])},
		Failed: x.failed,
	}
	r.Score = r.Rows[0].P50 / r.Rows[2].P50
	limit := "without a bound"
	if x.o.Rate > 0 {
		limit = fmt.Sprintf("bound to %g MiB/s", x.o.Rate)
	}
	r.Notes = append(r.Notes,
		fmt.Sprintf("%d images of %d MiB, from a registry on loopback %s; ours takes %.2f of what `up` takes, %.2f of pulling first, which pulls side by side", runImages, x.o.Size, limit, 1/r.Score, r.Rows[2].P50/r.Rows[1].P50),
		fmt.Sprintf("with the removal, ours takes %.2f of docker-compose's", r.Rows[4].P50/r.Rows[3].P50))
	return r, nil
}

// composed runs the job with docker-compose up and down.
func (x *runBench) composed(ctx context.Context, pull bool) (jobTimes, error) {
	begun := time.Now()
	if pull {
		if err := x.command(ctx, x.compose, "pull", "--quiet"); err != nil {
			return jobTimes{}, err
		}
	}
	if err := x.command(ctx, x.compose, "up", "-d"); err != nil {
		return jobTimes{}, err
	}
	up := time.Since(begun)
	list, err := x.engine.List(ctx, map[string]string{"com.docker.compose.project": "bench"})
	if err != nil {
		return jobTimes{}, err
	}
	running := 0
	for _, c := range list {
		if c.Running() {
			running++
		}
	}
	if running != runImages {
		x.failed++
	}
	err = x.command(ctx, x.compose, "down", "--volumes", "--timeout", "0")
	return jobTimes{up, time.Since(begun)}, err
}

// held runs the job with holdfast run.
func (x *runBench) held(ctx context.Context) (jobTimes, error) {
	first := &firstByte{begun: time.Now()}
	argv := append(append([]string{}, x.o.Holdfast...), "-f", filepath.Join(x.dir, "job.yaml"))
	if err := x.start(ctx, first, argv...); err != nil {
		return jobTimes{}, err
	}
	if first.at == 0 {
		x.failed++
	}
	return jobTimes{first.at, time.Since(first.begun)}, nil
}

// firstByte records the time of the first byte written to it.
type firstByte struct {
	begun time.Time
	at    time.Duration
}

func (f *firstByte) Write(p []byte) (int, error) {
	if f.at == 0 && len(p) > 0 {
		f.at = time.Since(f.begun)
	}
	return len(p), nil
}

func (x *runBench) command(ctx context.Context, argv ...string) error {
	return x.start(ctx, io.Discard, argv...)
}

// start runs a command to its end.
func (x *runBench) start(ctx context.Context, out io.Writer, argv ...string) error {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = x.dir, out, &errs
	cmd.Env = append(x.env(), "COMPOSE_PROJECT_NAME=bench")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, errs.Bytes())
	}
	return nil
}

// remove removes the images, so that the next job pulls them.
func (x *runBench) remove(ctx context.Context) error {
	return x.command(ctx, append([]string{x.docker, "rmi"}, x.images...)...)
}
