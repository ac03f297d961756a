package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/puller"
	"holdfast/internal/platform/engine"
)

// runOptions are the flags of `holdfast run`.
type runOptions struct {
	file        string
	services    []string
	parallelism int
	env, mounts []string
	workdir     string
	platform    string
	pull        string
	tty, stdin  bool
	fleet       string // nodes, allNodes or ""
}

func (a *app) runCmd() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] IMAGE -- COMMAND [ARG...]\n  holdfast run [flags] -f JOB.YAML",
		Short: "Run a job: a command in a container, with services beside it",
		Long: "Run a job on this host and exit with the exit code of its first failing step. The command runs in a container of IMAGE. Services run beside it, on a network of the job where their names resolve. " +
			"All images are pulled concurrently, and each container starts as soon as its image is present. The time of each phase is printed on stderr; stdout has the command's output. " +
			"At the end, and on Ctrl-C, everything is removed.\n" +
			"With --fleet the agents of the nodes run the job. Each run of --parallelism goes to the better of two nodes, by load and by the images that they have. The steps have no input then.\n" +
			"Flags go before IMAGE; everything after it is the command. A job file can have several steps, and settings of services: see docs/jobs.md.",
		Example: "  holdfast run golang:1.26 -- go version\n" +
			"  holdfast run --service db=postgres:16 --mount .:/src -w /src golang:1.26 -- go test ./...\n" +
			"  holdfast run -f job.yaml --parallelism 4\n" +
			"  holdfast run --fleet -f job.yaml --parallelism 32",
		Args:              args(0, 1<<16, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.within(noLimit, func(ctx context.Context, cmd *cobra.Command, words []string) error {
			j, err := a.jobOf(cmd, o, words)
			if err != nil {
				return err
			}
			if o.fleet == "" {
				return a.runJob(ctx, j, o)
			}
			if err := checkFleet(cmd, j); err != nil {
				return err
			}
			return a.with(cmd, noLimit, func(ctx context.Context, c *client.Client) error { return a.runOnFleet(ctx, c, j, o.fleet) })
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&o.file, "file", "f", "", "job file; - is this command's input")
	f.StringArrayVar(&o.services, "service", nil, "image of a service, or NAME=IMAGE; may be repeated")
	f.IntVarP(&o.parallelism, "parallelism", "n", 1, "number of concurrent runs of the job; $HOLDFAST_JOB_INDEX and $HOLDFAST_JOB_TOTAL distinguish them")
	f.StringArrayVarP(&o.env, "env", "e", nil, "variable for the command, KEY=VALUE, or KEY of this environment; may be repeated")
	f.StringVarP(&o.workdir, "workdir", "w", "", "working directory of the command")
	f.StringArrayVar(&o.mounts, "mount", nil, "SOURCE:TARGET[:ro] for the command; a source that begins with / or . is a path of this host, otherwise a volume; may be repeated")
	f.StringVar(&o.platform, "platform", "", "run images for another platform, such as linux/arm64")
	f.StringVar(&o.pull, "pull", "", "pull images that are missing, always or never (default missing)")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the command a terminal (default: if this is one)")
	f.BoolVarP(&o.stdin, "stdin", "i", true, "pass the input on; -i=false keeps the command from reading the input of a script")
	f.StringVar(&o.fleet, "fleet", "", "run it on the nodes of the fleet, or on some: --fleet=NODE,NODE")
	f.Lookup("fleet").NoOptDefVal = allNodes
	completeWords(cmd, "pull", string(job.PullMissing), string(job.PullAlways), string(job.PullNever))
	return cmd
}

// jobOf returns the job of the command line.
func (a *app) jobOf(cmd *cobra.Command, o runOptions, words []string) (job.Job, error) {
	if o.file != "" {
		return a.jobOfFile(cmd, o, words)
	}
	if len(words) > 1 && words[1] == "--" {
		words = append(words[:1:1], words[2:]...)
	}
	if len(words) < 2 {
		return job.Job{}, usage(cmd, fmt.Errorf("%s needs an image and a command, or a job file", cmd.CommandPath()))
	}
	here, err := os.Getwd()
	if err != nil {
		return job.Job{}, err
	}
	primary := job.Image{Image: words[0], WorkDir: o.workdir, Env: map[string]string{}}
	for _, kv := range o.env {
		name, value, given := strings.Cut(kv, "=")
		if !given {
			value, given = os.LookupEnv(name)
		}
		if given {
			primary.Env[name] = value
		}
	}
	for _, s := range o.mounts {
		m, err := job.ParseMount(s, here)
		if err != nil {
			return job.Job{}, Usage(fmt.Errorf("--mount: %w", err))
		}
		primary.Mounts = append(primary.Mounts, m)
	}
	j := job.Job{
		Images: []job.Image{primary}, Steps: []job.Step{{Command: words[1:]}},
		Parallelism: o.parallelism, Platform: o.platform, Pull: job.Policy(o.pull),
	}
	for _, s := range o.services {
		name, image, named := strings.Cut(s, "=")
		if !named {
			name, image = "", s
		}
		j.Images = append(j.Images, job.Image{Name: name, Image: image})
	}
	return a.completed(cmd, j)
}

// completed checks a job. On the command line a parallelism of 0 is an error.
func (a *app) completed(cmd *cobra.Command, j job.Job) (job.Job, error) {
	if cmd.Flags().Changed("parallelism") && j.Parallelism == 0 {
		j.Parallelism = -1
	}
	j, err := j.Complete()
	if err != nil {
		return job.Job{}, Usage(err)
	}
	return j, nil
}

// jobOfFile reads a job file. Flags for the run override it.
func (a *app) jobOfFile(cmd *cobra.Command, o runOptions, words []string) (job.Job, error) {
	if len(words) > 0 {
		return job.Job{}, usage(cmd, fmt.Errorf("the job file has image and steps, but got %q", words[0]))
	}
	for _, flag := range []string{"service", "env", "workdir", "mount"} {
		if cmd.Flags().Changed(flag) {
			return job.Job{}, usage(cmd, fmt.Errorf("--%s does not go with a job file, which has this setting", flag))
		}
	}
	text, dir, err := a.readJob(o.file)
	if err != nil {
		return job.Job{}, Usage(err)
	}
	j, err := job.Parse(cmd.Context(), text, dir)
	if err != nil {
		return job.Job{}, Usage(fmt.Errorf("%s: %w", o.file, err))
	}
	if cmd.Flags().Changed("parallelism") {
		j.Parallelism = o.parallelism
	}
	j.Platform = cmp.Or(o.platform, j.Platform)
	j.Pull = cmp.Or(job.Policy(o.pull), j.Pull)
	return a.completed(cmd, j)
}

// maxJobFile is the largest job file, in bytes.
const maxJobFile = 1 << 20

// readJob reads a job file, and returns the directory of its relative paths.
func (a *app) readJob(name string) (text []byte, dir string, err error) {
	var from io.Reader = a.ui.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, "", holdfast.WithHint(fmt.Errorf("read the job: %w", err), "docs/jobs.md has an example")
		}
		defer f.Close()
		from, dir = f, filepath.Dir(name)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, "", err
	}
	if text, err = io.ReadAll(io.LimitReader(from, maxJobFile+1)); err != nil {
		return nil, "", fmt.Errorf("read the job: %w", err)
	}
	return text, dir, nil
}

// runJob runs a job and prints the result.
func (a *app) runJob(ctx context.Context, j job.Job, o runOptions) error {
	local, err := a.openLocal(ctx)
	if err != nil {
		return runError(err)
	}
	defer local.close()
	r, err := a.runner(ctx, local, j, o)
	if err != nil {
		return runError(err)
	}
	id := job.NewID()
	w, err := job.StartWatcher(a.deps.JobWatcher, id)
	if err != nil {
		return runError(err)
	}
	defer w.Release()
	endSweep := a.beginSweep(ctx, local.Engine, r.Owner)
	defer endSweep()

	ended := local.recorder.Begin(ctx, spinup.ForRun, id)
	res, err := r.Run(ctx, id, j)
	ended()
	if err != nil {
		err = runError(err)
		res.ExitCode = exitCode(err)
	}
	nameOf := func(run int, name string) string { return inRun(run, j.Parallelism, name) }
	if shown := a.showJob(res, err, nameOf, local.Rules); err == nil && shown != nil {
		err = runError(shown)
	}
	if err == nil && res.ExitCode != 0 {
		return status(res.ExitCode)
	}
	return err
}

// runner returns a runner of jobs with this input and output.
func (a *app) runner(ctx context.Context, local Local, j job.Job, o runOptions) (*job.Runner, error) {
	owner, err := job.Self()
	if err != nil {
		return nil, err
	}
	p := puller.New(puller.Config{
		Engine: local.Engine, Logins: puller.DockerLogins{}, Manifests: puller.Registries{},
		Host: local.Host, Unpigz: spinup.HasUnpigz(),
	})
	cohort, err := p.Cohort(ctx)
	if err != nil {
		return nil, err
	}
	r := &job.Runner{
		Engine: local.Engine, Puller: puller.ForJobs{Puller: p}, Recorder: local.recorder, Cohort: cohort, Owner: owner,
		Log:    slog.New(slog.NewTextHandler(a.ui.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Stdout: a.ui.out, Stderr: a.ui.err,
		Tell:   func(e job.Event) { a.ui.note("%s: %s", clean(inRun(e.Run, j.Parallelism, e.Name)), clean(e.Line)) },
		Attach: func() (job.Input, error) { return a.attach(o) },
	}
	if a.ui.json { // stdout has only the result
		r.Stdout = a.ui.err
	}
	return r, nil
}

// inRun returns a name with the index of its run, if there are several runs.
func inRun(run, runs int, name string) string {
	if run < 0 || runs == 1 {
		return name
	}
	return fmt.Sprintf("%d %s", run, name)
}

// attach gives a step this input, and this terminal if there is one and the step may
// have it.
func (a *app) attach(o runOptions) (job.Input, error) {
	in := job.Input{Release: func() {}}
	if !o.stdin || o.file == "-" {
		return in, nil
	}
	in.Stdin = a.ui.in
	_, isIn := terminal(a.ui.in)
	_, isOut := terminal(a.ui.out)
	if in.TTY = o.tty || isIn && isOut && !a.ui.json; !in.TTY {
		return in, nil
	}
	sizes, restore, err := takeTerminal(a.ui.in, a.ui.out, func(rows, cols int) engine.Size {
		return engine.Size{Rows: uint(rows), Cols: uint(cols)}
	})
	if err == nil {
		in.Resize, in.Release = sizes, restore
	}
	return in, err
}

// Time limits of removing what other jobs left: for all of it, and for the wait of a
// finished command. The next job removes the rest.
const (
	sweepLimit = 2 * time.Minute
	sweepGrace = 5 * time.Second
)

// beginSweep removes what killed jobs left until end is called, and for some seconds
// more.
func (a *app) beginSweep(ctx context.Context, e job.Cleaner, self job.Owner) (end func()) {
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		a.sweepJobs(ctx, e, self)
	}()
	return func() {
		select {
		case <-swept:
		case <-time.After(sweepGrace):
		}
		cancel()
		<-swept
	}
}

// sweepJobs removes what killed jobs left.
func (a *app) sweepJobs(ctx context.Context, e job.Cleaner, self job.Owner) {
	n, err := job.Sweep(ctx, e, self, slog.New(slog.DiscardHandler))
	if n > 0 {
		a.ui.note("removed leftovers of %s", count(n, "killed job"))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		a.ui.note("warning: %s", clean(err.Error()))
	}
}
