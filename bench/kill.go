package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/kill"
	"holdfast/test/lab"
)

// KillOptions configures `holdfast bench kill`.
type KillOptions struct {
	N      int // containers to kill at once; 0 is 200
	Rounds int // measurements of each way of killing; 0 is 1
	// Image is what the containers run: ImageNginx, as in the source, or ImageSleep, two
	// sleeping processes under a shell. "" is ImageNginx.
	Image string
	// Trace runs docker kill once, and shows where its time goes, instead of the measurements.
	Trace   bool
	Dockerd string // directory of another engine, as for lab.Options.With
	// Guardian is the command line of a guardian process: the program holdfast with
	// the argument guardian.
	Guardian []string
	Progress io.Writer    // receives a line for each long step; nil discards them
	Log      *slog.Logger // nil discards it
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o KillOptions) Check() error {
	if o.N < 1 || o.Rounds < 1 {
		return fmt.Errorf("containers is %d and rounds is %d, both must be at least 1", o.N, o.Rounds)
	}
	if o.Image != ImageNginx && o.Image != ImageSleep {
		return fmt.Errorf("image is %q, it must be %s or %s", o.Image, ImageNginx, ImageSleep)
	}
	return nil
}

// What the containers run.
const (
	ImageNginx = "nginx"
	ImageSleep = "sleep"
)

// Names of the rows.
const (
	rowDockerKill = "docker kill"
	rowPaused     = "holdfast, engine paused"
	rowPlain      = "holdfast, engine running"
)

// settle is the wait between the last start and the kill, the same for each way of
// killing, so that the engine has finished its work on the starts.
const settle = 2 * time.Second

// sleepCommand makes a container of ImageSleep a small process tree, like a server with two
// workers.
var sleepCommand = []string{"/bin/sh", "-c", "sleep inf & sleep inf & wait"}

// Kill repeats the experiment of the source on an engine of its own: N containers run
// and are killed at once, by one `docker kill` with all ids, and by Holdfast. It
// measures from the call until all processes are seen dead. It works only inside a lab
// (lab.Reenter).
//
// Score is docker kill ÷ Holdfast with the engine paused.
func Kill(ctx context.Context, o KillOptions) (Result, error) {
	o.N, o.Rounds, o.Image = cmp.Or(o.N, 200), cmp.Or(o.Rounds, 1), cmp.Or(o.Image, ImageNginx)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	x, err := newKillBench(ctx, o)
	return conduct(ctx, x, err)
}

// killBench is one run of the experiment.
type killBench struct {
	o      KillOptions
	lab    *lab.Engine
	engine engine.Engine
	guard  *guardian.Guardian
	quiet  *guardian.Engine
	ids    []string
	took   map[string][]float64 // row → milliseconds
	tidied map[string][]float64
	failed int
	notes  []string
}

func newKillBench(ctx context.Context, o KillOptions) (*killBench, error) {
	x := &killBench{o: o, took: make(map[string][]float64), tidied: make(map[string][]float64)}
	var err error
	var options lab.Options
	if o.Trace {
		options.Args = []string{"--debug"}
	}
	if x.lab, err = lab.StartEngine(ctx, options.With(o.Dockerd)); err != nil {
		return x, err
	}
	image, err := lab.Nginx()
	if o.Image == ImageSleep {
		image, err = lab.Busybox()
		image.Command = sleepCommand
	}
	if err != nil {
		return x, err
	}
	if err := x.lab.Import(ctx, image); err != nil {
		return x, err
	}
	if x.engine, err = docker.Open(ctx, docker.Config{Host: x.lab.Host()}); err != nil {
		return x, err
	}
	if x.guard, err = guardian.Start(o.Guardian, o.Log); err != nil {
		return x, err
	}
	x.quiet = &guardian.Engine{Guardian: x.guard, Socket: x.lab.Socket(), Log: o.Log}
	fmt.Fprintf(o.Progress, "creating %d containers\n", o.N)
	for i := range o.N {
		id, err := x.engine.Create(ctx, engine.Spec{
			Name: fmt.Sprintf("bench-%d", i), Image: image.Ref, Command: image.Command, Restart: engine.RestartNo,
		})
		if err != nil {
			return x, err
		}
		x.ids = append(x.ids, id)
	}
	return x, nil
}

func (x *killBench) close() error {
	var errs []error
	if x.quiet != nil {
		x.quiet.Close()
	}
	if x.guard != nil {
		errs = append(errs, x.guard.Close())
	}
	if x.engine != nil {
		errs = append(errs, x.engine.Close())
	}
	if x.lab != nil {
		errs = append(errs, x.lab.Stop())
	}
	return errors.Join(errs...)
}

// killing kills all targets and returns the time until they were dead.
type killing func(context.Context, []*kill.Target) (time.Duration, error)

// run measures the three ways in turns. The order rotates each round.
func (x *killBench) run(ctx context.Context) (Result, error) {
	if x.o.Trace {
		return x.trace(ctx)
	}
	ways := []struct {
		row  string
		kill killing
	}{{rowDockerKill, x.killByEngine}, {rowPaused, x.killQuietly}, {rowPlain, x.killPlainly}}
	for round := range x.o.Rounds {
		for i := range ways {
			w := ways[(round+i)%len(ways)]
			if err := x.measure(ctx, w.row, w.kill); err != nil {
				return Result{}, fmt.Errorf("%s: %w", w.row, err)
			}
		}
	}
	info, err := x.engine.Info(ctx)
	if err != nil {
		return Result{}, err
	}
	res := Result{
		Name:    "kill",
		Machine: EngineMachine(info),
		Failed:  x.failed,
	}
	for _, w := range ways {
		res.Rows = append(res.Rows, NewRow(w.row, "ms", x.took[w.row]))
	}
	for _, w := range ways {
		res.Rows = append(res.Rows, NewRow("engine tidied up after "+w.row, "ms", x.tidied[w.row]))
	}
	peer, quiet, plain := res.Rows[0].P50, res.Rows[1].P50, res.Rows[2].P50
	res.Score = peer / quiet
	res.Notes = append(x.notes,
		fmt.Sprintf("%d containers of %s, killed at once; paused %.0f times, running %.0f times as fast as docker kill", x.o.N, x.o.Image, peer/quiet, peer/plain))
	return res, nil
}

// measure starts all containers, kills them one way, checks that they are dead,
// and waits until the engine has tidied up.
func (x *killBench) measure(ctx context.Context, row string, how killing) error {
	targets, err := x.started(ctx)
	defer closeAll(targets)
	if err != nil {
		return err
	}
	fmt.Fprintf(x.o.Progress, "killing: %s\n", row)
	begun := time.Now()
	took, err := how(ctx, targets)
	if err != nil {
		return err
	}
	alive, err := survivors(x.ids)
	if err != nil {
		return err
	}
	x.failed += alive
	closeAll(targets)
	if err := x.waitTidy(ctx); err != nil {
		return err
	}
	tidied := time.Since(begun)
	x.took[row] = append(x.took[row], millis(took))
	x.tidied[row] = append(x.tidied[row], millis(tidied))
	fmt.Fprintf(x.o.Progress, "killed in %.1f ms, tidied up after %.0f ms\n", millis(took), millis(tidied))
	return nil
}

// started starts all containers, and returns when the engine has finished its work on that.
func (x *killBench) started(ctx context.Context) ([]*kill.Target, error) {
	fmt.Fprintf(x.o.Progress, "starting %d containers\n", x.o.N)
	targets, err := x.start(ctx)
	if err != nil {
		return targets, err
	}
	runtime.GC() // collect this process's garbage now, not during the measurement
	return targets, tasks.Sleep(ctx, settle)
}

func closeAll(targets []*kill.Target) {
	for _, t := range targets {
		t.Close()
	}
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

// start starts the containers, a few at a time, and opens their kill targets as a
// session does.
func (x *killBench) start(ctx context.Context) ([]*kill.Target, error) {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.NumCPU())
	for _, id := range x.ids {
		g.Go(func() error { return x.engine.Start(gctx, id) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	opener, err := kill.NewOpener()
	if err != nil {
		return nil, err
	}
	var targets []*kill.Target
	for _, id := range x.ids {
		c, err := x.engine.Inspect(ctx, id)
		if err != nil {
			return targets, err
		}
		t, err := opener.Open(id, c.Name, c.Pid)
		if err != nil {
			return targets, err
		}
		targets = append(targets, t)
	}
	return targets, x.quiet.Find(targets...)
}

// killByEngine runs the source's command, one docker kill with all ids. If the docker
// command is not installed, the bench sends the same requests concurrently.
func (x *killBench) killByEngine(ctx context.Context, _ []*kill.Target) (time.Duration, error) {
	begun := time.Now()
	if path, err := exec.LookPath("docker"); err == nil {
		cmd := x.dockerKill(ctx, path)
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("docker kill: %w: %.200s", err, out)
		}
		return time.Since(begun), nil
	}
	x.note("the docker command is not installed: the bench sent its requests, all at once")
	g, gctx := errgroup.WithContext(ctx)
	for _, id := range x.ids {
		g.Go(func() error { return x.engine.Kill(gctx, id) })
	}
	err := g.Wait()
	return time.Since(begun), err
}

// dockerKill is the source's command.
func (x *killBench) dockerKill(ctx context.Context, path string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, append([]string{"kill"}, x.ids...)...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+x.lab.Host())
	return cmd
}

func (x *killBench) killQuietly(ctx context.Context, targets []*kill.Target) (time.Duration, error) {
	return x.killOurselves(ctx, targets, &kill.Killer{Pauser: x.quiet, PauseFrom: 1, Log: x.o.Log})
}

func (x *killBench) killPlainly(ctx context.Context, targets []*kill.Target) (time.Duration, error) {
	return x.killOurselves(ctx, targets, &kill.Killer{Log: x.o.Log})
}

func (x *killBench) killOurselves(ctx context.Context, targets []*kill.Target, k *kill.Killer) (time.Duration, error) {
	report := k.Kill(ctx, targets)
	x.failed += len(report.Left)
	if report.Notice != "" {
		x.failed++
		x.note(report.Notice)
	}
	for _, s := range report.Steps {
		fmt.Fprintf(x.o.Progress, "  %s %v (%d)\n", s.Name, s.Took, s.Count)
	}
	return time.Duration(report.Took), nil
}

func (x *killBench) note(s string) {
	for _, n := range x.notes {
		if n == s {
			return
		}
	}
	x.notes = append(x.notes, s)
}

// waitTidy returns when the engine lists no running container.
func (x *killBench) waitTidy(ctx context.Context) error {
	for {
		list, err := x.engine.List(ctx, nil)
		if err != nil {
			return err
		}
		running := 0
		for _, c := range list {
			if c.Running() {
				running++
			}
		}
		if running == 0 {
			return nil
		}
		if tasks.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the engine still lists %d running containers: %w", running, ctx.Err())
		}
	}
}
