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
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// Engine is what a job needs of a container engine.
type Engine interface {
	Cleaner
	ImageID(ctx context.Context, ref string) (string, error)
	Create(ctx context.Context, s engine.Spec) (string, error)
	Start(ctx context.Context, id string) error
	Inspect(ctx context.Context, id string) (engine.Container, error)
	Logs(ctx context.Context, id string, o engine.LogOptions, w io.Writer) error
	Exec(ctx context.Context, id string, x engine.Exec) (int, error)
	CreateNetwork(ctx context.Context, name string, labels map[string]string) (string, error)
}

// Puller fetches an image and measures that; with missing, only one that is not
// on this host. platform may be "". The figures
// count also where there is an error.
type Puller interface {
	Pull(ctx context.Context, image, platform string, missing bool) (spinup.Pull, error)
}

// Recorder keeps spin-ups, each as soon as it has ended.
type Recorder interface {
	Record(ctx context.Context, records ...spinup.Record) error
}

// Event is something that happened on the way, in words.
type Event struct {
	Run  int    // -1: of all of them
	Name string // a container's in the job, an image's where Run is -1
	Line string
}

// Runner runs jobs. Its fields are not changed while it does; Run may be called
// from several goroutines.
type Runner struct {
	Engine   Engine
	Puller   Puller
	Recorder Recorder // nil: nobody
	Cohort   spinup.Cohort
	Owner    Owner // Self
	Log      *slog.Logger
	// Tell is told what happens, one event at a time; nil is nobody.
	Tell func(Event)
	// Stdout and Stderr get what the steps write: as it is where there is one
	// run, else line by line behind the run's index. They may be nil.
	Stdout, Stderr io.Writer
	// Attach gives the step of a job that has one step and runs once its
	// input, and is called when that begins; nil is none. Other jobs' steps
	// have no input: the first would eat what is meant for the others.
	Attach func() (Input, error)
	// AtOnce bounds the containers that are created and started at the same
	// time; 0 is twice the CPUs and at least 4. What a create takes is mostly
	// the engine's locks and its runtime's processes: more at once only make
	// each of them slow.
	AtOnce int
}

// Input is what a step gets beside its command.
type Input struct {
	Stdin   io.Reader // may be nil
	TTY     bool      // then all output goes to the runner's Stdout
	Resize  <-chan engine.Size
	Release func() // called when the step has ended
}

// Result is how a job went.
type Result struct {
	Job      string `json:"job"`
	ExitCode int    `json:"exit_code"` // of the first step that failed, in the order of the runs
	Runs     []Run  `json:"runs"`
	// Spinups are all containers' ways up, run by run in the job's order;
	// those which were never begun are missing.
	Spinups []Spinup `json:"spinups"`
}

// Spinup is one container's way up.
type Spinup struct {
	Run   int    `json:"run"`
	Alias string `json:"alias"` // the container's name in the job
	spinup.Record

	image int // its place in the job
}

// Run is one of a job's parallel runs.
type Run struct {
	Index    int          `json:"index"`
	ExitCode int          `json:"exit_code"`
	Steps    []StepResult `json:"steps"` // those that ran
}

// StepResult is how one step went.
type StepResult struct {
	Name     string          `json:"name"`
	ExitCode int             `json:"exit_code"`
	Took     holdfast.Millis `json:"took_ms"`
}

// NewID is the id for a job.
func NewID() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// cleanLimit bounds the removal of a job's containers and networks.
const cleanLimit = 2 * time.Minute

// Run runs the job under an id that no other has, and returns when everything
// that it made is removed. That a step failed is no error: it is in the result.
// An error is that the job could not be brought up, was stopped, or left
// something behind (ErrLeft); the result has what there was until then.
func (r *Runner) Run(ctx context.Context, id string, j Job) (Result, error) {
	j, err := j.Complete()
	if err != nil {
		return Result{Job: id}, err
	}
	x := &underway{Runner: r, id: id, job: j, slots: make(chan struct{}, r.atOnce()), recording: record(ctx, r.Recorder, r.Log)}
	err = x.all(ctx)
	left := x.clean(ctx)
	x.recording.end() // last: nothing goes on running while records are written
	return x.result(), errors.Join(err, left)
}

func (r *Runner) atOnce() int {
	if r.AtOnce > 0 {
		return r.AtOnce
	}
	return max(4, 2*runtime.NumCPU())
}

// ErrLeft says that something of a job could not be removed.
var ErrLeft = errors.New("something of the job is left behind")

// underway is one job that is being run.
type underway struct {
	*Runner
	id        string
	job       Job
	slots     chan struct{} // for creates and starts
	recording *recording

	mu      sync.Mutex // guards what follows, and Tell
	runs    []Run
	spinups []Spinup
}

// all brings every run up and runs its steps. The first error ends all of them.
func (x *underway) all(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	fetched := x.fetchAll(ctx, g)
	out := newOutputs(x.Runner, x.job.Parallelism)
	for i := range x.job.Parallelism {
		g.Go(func() error {
			primary, err := x.bringUp(ctx, i, fetched)
			if err != nil {
				return err
			}
			return x.steps(ctx, i, primary, out[i])
		})
	}
	return g.Wait()
}

func (x *underway) result() Result {
	x.mu.Lock()
	defer x.mu.Unlock()
	res := Result{Job: x.id, Runs: append([]Run{}, x.runs...), Spinups: append([]Spinup{}, x.spinups...)}
	slices.SortFunc(res.Runs, func(a, b Run) int { return a.Index - b.Index })
	for _, r := range res.Runs {
		if r.ExitCode != 0 {
			res.ExitCode = r.ExitCode
			break
		}
	}
	slices.SortFunc(res.Spinups, func(a, b Spinup) int { return cmp.Or(a.Run-b.Run, a.image-b.image) })
	return res
}

// clean removes everything, also when ctx has ended.
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

// keep takes a spin-up that has ended, and has it recorded.
func (x *underway) keep(s Spinup) {
	x.mu.Lock()
	x.spinups = append(x.spinups, s)
	x.mu.Unlock()
	x.recording.add(s.Record)
}
