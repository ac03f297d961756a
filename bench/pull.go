package bench

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"holdfast"
	"holdfast/test/lab"
	"holdfast/test/lab/registry"
)

// PullOptions configures `holdfast bench pull`.
type PullOptions struct {
	N int // pulls of each kind; 0 is 15
	// Size is the image's size in MiB, spread over four layers; 0 is 64.
	Size    int
	Dockerd string // directory of another engine, as for lab.Options.With
	// Holdfast is the command line that pulls: the program holdfast with the argument
	// pull. The bench appends the image. HOLDFAST_CONFIG names its configuration.
	Holdfast []string
	Progress io.Writer // receives progress lines; nil discards them
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o PullOptions) Check() error {
	switch {
	case o.N < 1:
		return fmt.Errorf("pulls is %d, it must be at least 1", o.N)
	case o.Size < 4 || o.Size > 4096:
		return fmt.Errorf("the image has %d MiB, it must have 4 to 4096", o.Size)
	}
	return nil
}

// Names of the rows.
const (
	rowDockerPull   = "docker pull"
	rowHoldfastPull = "holdfast pull"
)

const (
	pullWarmups = 2 // of each kind, not counted
	pullLimit   = 5 * time.Minute
	pullTag     = "bench/pull:1"
)

// Pull measures in turns `docker pull` and `holdfast pull` of one image from a registry
// on loopback. Each is measured from the process's start to its end, and the image is
// removed after each. It works only inside a lab (lab.Reenter).
//
// Score is docker's p50 ÷ Holdfast's.
func Pull(ctx context.Context, o PullOptions) (Result, error) {
	o.N, o.Size = cmp.Or(o.N, 15), cmp.Or(o.Size, 64)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	x, err := newPullBench(ctx, o)
	return conduct(ctx, x, err)
}

// pullBench is one run of the experiment.
type pullBench struct {
	pulling
	o      PullOptions
	docker string // the program
	image  string
	failed int
}

func newPullBench(ctx context.Context, o PullOptions) (*pullBench, error) {
	x := &pullBench{o: o}
	var err error
	if x.docker, err = exec.LookPath("docker"); err != nil {
		return x, holdfast.WithHint(fmt.Errorf("the peer docker is not installed: %w", err), "apt-get install docker.io")
	}
	if err := x.open(ctx, lab.Options{}.With(o.Dockerd)); err != nil {
		return x, err
	}
	fmt.Fprintf(o.Progress, "making an image of %d MiB\n", o.Size)
	if err := x.push(ctx); err != nil {
		return x, err
	}
	return x, os.WriteFile(x.configFile(), []byte(x.config()), 0o600)
}

// push makes the image with layers as common images have them: one large, two of
// medium size, one small.
func (x *pullBench) push(ctx context.Context) error {
	var layers []registry.Layer
	for i, share := range []int64{8, 4, 3, 1} {
		layers = append(layers, registry.Layer{Seed: uint64(i + 1), Size: int64(x.o.Size) << 20 * share / 16})
	}
	image, err := registry.Image(runtime.GOARCH, layers...)
	if err != nil {
		return err
	}
	x.image = x.registry.Host() + "/" + pullTag
	_, err = x.registry.Push(ctx, image, pullTag, registry.Options{})
	return err
}

func (x *pullBench) run(ctx context.Context) (Result, error) {
	machine, err := x.machine(ctx)
	if err != nil {
		return Result{}, err
	}
	kinds := [][]string{{x.docker, "pull", x.image}, append(append([]string{}, x.o.Holdfast...), x.image)}
	var took [2][]float64
	var ratios []float64
	for i := range x.o.N + pullWarmups {
		if i%5 == 0 {
			fmt.Fprintf(x.o.Progress, "%d of %d pulls of each kind\n", max(0, i-pullWarmups), x.o.N)
		}
		var pair [2]float64
		// The order rotates each turn.
		for _, k := range []int{i % 2, 1 - i%2} {
			d, err := x.pull(ctx, kinds[k])
			if err != nil {
				return Result{}, err
			}
			pair[k] = millis(d)
		}
		if i < pullWarmups {
			continue
		}
		for k := range took {
			took[k] = append(took[k], pair[k])
		}
		ratios = append(ratios, pair[1]/pair[0])
	}
	r := Result{
		Name:    "pull",
		Machine: machine,
		Rows:    []Row{NewRow(rowDockerPull, "ms", took[0]), NewRow(rowHoldfastPull, "ms", took[1]), NewRow("holdfast ÷ docker, pairs", "", ratios)},
		Failed:  x.failed,
	}
	r.Score = r.Rows[0].P50 / r.Rows[1].P50
	r.Notes = append(r.Notes, fmt.Sprintf("an image of %d MiB in 4 layers, from a registry on loopback; the medians' ratio is %.3f, that of the pairs %.3f",
		x.o.Size, 1/r.Score, r.Rows[2].P50))
	return r, nil
}

// pull runs one command and removes the image. A command that fails or leaves no image
// counts as failed.
func (x *pullBench) pull(ctx context.Context, command []string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, pullLimit)
	defer cancel()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = x.env(), &output, &output
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err == nil {
		_, err = x.engine.ImageID(ctx, x.image)
	}
	if err != nil {
		x.failed++
		fmt.Fprintf(x.o.Progress, "%v: %v: %s\n", command, err, output.Bytes())
		return took, nil
	}
	remove := exec.CommandContext(ctx, x.docker, "rmi", x.image)
	remove.Env = x.env()
	if out, err := remove.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("remove the image: %w: %s", err, out)
	}
	return took, nil
}
