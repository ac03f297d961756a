// Package jobnode runs the parts of jobs (`holdfast run --fleet`) on a node, and places the
// runs of a job on the nodes of the fleet.
package jobnode

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/semaphore"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/puller"
	"holdfast/internal/hosts/spinup/recorder"
	"holdfast/internal/platform/engine"
)

// Deps are the parts of the agent that jobs use.
type Deps struct {
	Engine   engine.Engine
	Puller   *puller.Puller
	Spinups  *recorder.Host
	Nodes    func(context.Context) ([]holdfast.Node, error) // all nodes that are up
	Draining func() bool
	// Client returns a client of another node's API, which the caller closes. nil: this
	// node reaches no others.
	Client func(holdfast.Node) (*client.Client, error)
	Log    *slog.Logger
}

// Node implements api.Jobs. Any goroutine may call its methods.
type Node struct {
	Deps
	id      holdfast.NodeID
	share   float64 // of the nodes that may be out of rotation
	engine  job.Engine
	owner   job.Owner
	watcher []string
	slots   *semaphore.Weighted // a token for each run
}

// New returns the jobs of a node. watcher is a command line whose process calls Watch.
func New(c config.Config, id holdfast.NodeID, watcher []string, d Deps) (*Node, error) {
	text, err := json.Marshal(watcherConfig{c.DataDir, c.Engine})
	if err != nil {
		return nil, err
	}
	n := &Node{Deps: d, id: id, share: c.Doctor.Rotation.MaxShare, watcher: append(watcher[:len(watcher):len(watcher)], string(text)), slots: semaphore.NewWeighted(job.MaxParallelism)}
	n.engine, _ = d.Engine.(job.Engine)
	n.owner, err = job.Self()
	return n, err
}

// watcherConfig is what a watcher has of the agent's configuration.
type watcherConfig struct {
	DataDir string
	Engine  config.Engine
}

// OpenEngine opens the engine of a watcher, from the argument that New adds to its command
// line.
func OpenEngine(ctx context.Context, arg string) (process.Engine, error) {
	var w watcherConfig
	if err := json.Unmarshal([]byte(arg), &w); err != nil {
		return nil, fmt.Errorf("read the watcher's configuration: %w", err)
	}
	return process.OpenEngine(ctx, config.Config{DataDir: w.DataDir, Engine: w.Engine})
}

// Run removes the leftovers of jobs with dead owners, until ctx is done.
func (n *Node) Run(ctx context.Context) error {
	if n.engine == nil {
		<-ctx.Done()
		return nil
	}
	return job.RunSweeper(ctx, n.engine, n.owner, n.Log)
}

// RunJob implements api.Jobs.
func (n *Node) RunJob(ctx context.Context, q api.JobRequest, s api.JobStream) error {
	runs := int64(len(q.Runs))
	switch {
	case n.engine == nil:
		return fmt.Errorf("node %s runs no jobs: %w", n.id, engine.ErrUnsupported)
	case n.Draining():
		return fmt.Errorf("node %s: %w", n.id, holdfast.ErrDraining)
	case !n.slots.TryAcquire(runs):
		return fmt.Errorf("node %s would have more than %d runs of jobs at once: %w", n.id, job.MaxParallelism, holdfast.ErrBusy)
	}
	defer n.slots.Release(runs)
	id := q.ID + "-" + suffix()
	w, err := job.StartWatcher(n.watcher, id)
	if err != nil {
		return err
	}
	left := true
	defer func() { w.End(left) }()
	defer n.Spinups.Begin(spinup.ForRun, id)()
	r := &job.Runner{
		Engine: n.engine, Puller: puller.ForJobs{Puller: n.Puller}, Recorder: records{n.Spinups}, Cohort: n.Spinups.Cohort(),
		Owner: n.owner, Log: n.Log, Runs: q.Runs, Job: q.ID, Output: s.Output,
		Tell:    func(e job.Event) { s.Event(api.JobEvent{Progress: &e}) },
		Started: func(u job.Spinup) { s.Event(api.JobEvent{Started: &u}) },
		Ended:   func(r job.Run) { s.Event(api.JobEvent{Ended: &r}) },
	}
	_, err = r.Run(ctx, id, q.Job)
	left = errors.Is(err, job.ErrLeft)
	return err
}

// suffix makes the ids of several parts of one job different, also on one engine.
func suffix() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// records keeps the spin-ups of jobs with those of the node.
type records struct{ host *recorder.Host }

func (r records) Record(_ context.Context, list ...spinup.Record) error {
	for _, one := range list {
		r.host.Record(one)
	}
	return nil
}
