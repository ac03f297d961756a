package job

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// Engine is the part of a container engine that a job uses.
type Engine interface {
	Cleaner
	ImageDigest(ctx context.Context, name string) (string, error)
	Create(ctx context.Context, s engine.Spec) (string, error)
	Start(ctx context.Context, id string) error
	Inspect(ctx context.Context, id string) (engine.Container, error)
	Logs(ctx context.Context, id string, o engine.LogOptions, w io.Writer) error
	Exec(ctx context.Context, id string, x engine.Exec) (int, error)
	CreateNetwork(ctx context.Context, name string, labels map[string]string) (string, error)
}

// Puller pulls an image and measures the pull. With missing it pulls only an
// image that is not on this host. platform may be "". The figures are valid even
// if there is an error.
type Puller interface {
	Pull(ctx context.Context, image, platform string, missing bool) (spinup.Pull, error)
}

// Recorder saves spin-ups as they end.
type Recorder interface {
	Record(ctx context.Context, records ...spinup.Record) error
}

// Event is a progress message.
type Event struct {
	Run  int    `json:"run"`  // -1: all runs
	Name string `json:"name"` // the container's name in the job, or the image's if Run is -1
	Line string `json:"line"`
}

// Runner runs jobs. Its fields must not change during Run. Run may be called from
// several goroutines.
type Runner struct {
	Engine   Engine
	Puller   Puller
	Recorder Recorder // nil: not recorded
	Cohort   spinup.Cohort
	Owner    Owner // from Self
	Log      *slog.Logger
	// Tell receives the events one at a time; it may be nil.
	Tell func(Event)
	// Stdout and Stderr receive the output of the steps: unchanged for one run,
	// else line by line with the run's index as prefix. They may be nil.
	Stdout, Stderr io.Writer
	// Attach returns the step's input when the step begins; nil: no input. It
	// applies only to a job with one step and one run. Steps of other jobs have
	// no input, because the first would read the input meant for the others.
	Attach func() (Input, error)
	// Runs are the indices of the runs that Run runs; nil: all runs of the job. The
	// others run elsewhere.
	Runs []int
	// Job is the job of the records; "" is the id. Parts of one job that run on several
	// hosts have an id each.
	Job string
	// Output, if not nil, returns the outputs of one run, in place of Stdout and Stderr.
	Output func(run int) (stdout, stderr io.Writer)
	// Started and Ended receive parts of the result as they become known, in turn with
	// Tell: the start of each container, and each run that was run to its end. They may
	// be nil.
	Started func(Spinup)
	Ended   func(Run)
	// AtOnce limits concurrent creates and starts of containers; 0 is twice the
	// CPUs and at least 4. The duration of a create is mostly the engine's locks
	// and the runtime's processes, so more concurrency only slows each of them.
	AtOnce int
}

// Input is a step's standard input and terminal.
type Input struct {
	Stdin   io.Reader // may be nil
	TTY     bool      // all output then goes to the runner's Stdout
	Resize  <-chan engine.Size
	Release func() // called when the step has ended
}

// Result is the result of a job.
type Result struct {
	Job      string `json:"job"`
	ExitCode int    `json:"exit_code"` // of the first failed step, in the order of the runs
	Runs     []Run  `json:"runs"`
	// Spinups are the starts of all containers, ordered by run and by position in
	// the job. Containers never begun are missing.
	Spinups []Spinup `json:"spinups"`
}

// Spinup is the start of one container.
type Spinup struct {
	Run   int    `json:"run"`
	Alias string `json:"alias"` // the container's name in the job
	spinup.Record

	image int // index in the job's images
}

// Run is one of a job's parallel runs.
type Run struct {
	Index    int          `json:"index"`
	ExitCode int          `json:"exit_code"`
	Steps    []StepResult `json:"steps"` // those that ran
	// Node ran it, and Error is why it has no result. Both are empty unless the job ran
	// on the fleet.
	Node  holdfast.NodeID `json:"node,omitempty"`
	Error string          `json:"error,omitempty"`
}

// StepResult is the result of one step.
type StepResult struct {
	Name     string          `json:"name"`
	ExitCode int             `json:"exit_code"`
	Took     holdfast.Millis `json:"took_ms"`
}

// NewID returns a random id for a job.
func NewID() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// cleanLimit bounds the removal of a job's containers and networks.
const cleanLimit = 2 * time.Minute

// Run runs the job under a unique id and returns when everything that it made is
// removed. A failed step is not an error; it is in the result. An error means
// that the job could not start, was stopped, or left something behind (ErrLeft).
// The result then has what was done until that point.
func (r *Runner) Run(ctx context.Context, id string, j Job) (Result, error) {
	j, err := j.Complete()
	if err != nil {
		return Result{Job: id}, err
	}
	runs := r.Runs
	if runs == nil {
		runs = seq(j.Parallelism)
	}
	atOnce := cmp.Or(r.AtOnce, max(4, 2*runtime.NumCPU()))
	x := &underway{
		Runner: r, id: id, job: j, indices: runs, slots: semaphore.NewWeighted(int64(atOnce)),
		recording: record(ctx, r.Recorder, len(j.Images)*len(runs), r.Log),
	}
	err = x.all(ctx)
	left := x.clean(ctx)
	x.recording.end() // last: no container runs while records are written
	return x.result(), errors.Join(err, left)
}

// seq returns the numbers from 0 up to n, exclusive.
func seq(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// ErrLeft means that not everything of a job could be removed.
var ErrLeft = errors.New("not everything of the job could be removed")

// underway is one running job.
type underway struct {
	*Runner
	id        string
	job       Job
	indices   []int               // of the runs
	slots     *semaphore.Weighted // limits concurrent creates and starts
	recording *recording

	mu      sync.Mutex // guards the fields below, and calls of Tell
	runs    []Run
	spinups []Spinup
}

// all starts every run and executes its steps. The first error stops all runs.
func (x *underway) all(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	fetched := x.fetchAll(ctx, g)
	out := newOutputs(x.Runner, x.job.Parallelism)
	for _, i := range x.indices {
		g.Go(func() error {
			primary, err := x.bringUp(ctx, i, fetched)
			if err != nil {
				return err
			}
			return x.steps(ctx, i, primary, out(i))
		})
	}
	return g.Wait()
}

func (x *underway) result() Result {
	x.mu.Lock()
	defer x.mu.Unlock()
	res := Result{Job: x.id, Runs: append([]Run{}, x.runs...), Spinups: append([]Spinup{}, x.spinups...)}
	res.Conclude()
	return res
}

// Conclude sorts the parts of the result and sets the exit code.
func (r *Result) Conclude() {
	sort.SliceStable(r.Spinups, func(i, j int) bool {
		a, b := &r.Spinups[i], &r.Spinups[j]
		return cmp.Or(a.Run-b.Run, a.image-b.image) < 0
	})
	sort.Slice(r.Runs, func(i, j int) bool { return r.Runs[i].Index < r.Runs[j].Index })
	if i := slices.IndexFunc(r.Runs, func(r Run) bool { return r.ExitCode != 0 }); i >= 0 {
		r.ExitCode = r.Runs[i].ExitCode
	}
}

// clean removes everything that the job made, even if ctx is done.
func (x *underway) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	x.emptyMemory(ctx)
	if _, err := removeJob(ctx, x.Engine, x.id); err != nil {
		return holdfast.WithHint(fmt.Errorf("%w: %w", ErrLeft, err), "the next `holdfast run` tries again; docker ps -a --filter label="+LabelJob+"="+x.id+" shows it")
	}
	return nil
}

func (x *underway) tell(run int, name, line string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.Tell != nil {
		x.Tell(Event{Run: run, Name: name, Line: line})
	}
}

// keep adds a finished spin-up to the result and has it recorded.
func (x *underway) keep(s Spinup) {
	x.mu.Lock()
	x.spinups = append(x.spinups, s)
	if x.Started != nil {
		x.Started(s)
	}
	x.mu.Unlock()
	x.recording.add(s.Record)
}
