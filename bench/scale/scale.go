// Package scale simulates a large fleet in one process, behind `holdfast bench
// scale`: nodes with the real store client, lease, directory and placement, and
// with containers that only take their time, on a real etcd of three members.
package scale

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"holdfast"
	"holdfast/bench"
)

// Options says how large the fleet is.
type Options struct {
	Nodes       int           // over 1
	Sessions    int           // records in the store, spread over the nodes
	Lost        float64       // share of the nodes that vanish at once, over 0 and under 1
	Directories int           // nodes that keep a directory of their own; the others ask these; 0 is 1
	Watchers    int           // more watches of all records, which only count: the store feeds one for each node of a real fleet
	Boot        time.Duration // what a container takes from create to ready
	Steady      time.Duration // how long the fleet is measured before the loss
	Timing      holdfast.Timing
	Patience    time.Duration // how long is waited after the loss; 0 is 2 minutes
	Seed        int64         // of the random choices: the nodes that vanish, the clients' nodes; 0 is 1

	Member    []string // command that plays a member of an etcd cluster
	Directory []string // command that plays MeasureDirectory
	Progress  io.Writer
}

// withDefaults fills in what is zero, and checks the rest.
func (o Options) withDefaults() (Options, error) {
	if o.Timing == (holdfast.Timing{}) {
		o.Timing = holdfast.DefaultTiming()
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Patience == 0 {
		o.Patience = 2 * time.Minute
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	o.Directories = min(cmp.Or(o.Directories, 1), o.Nodes)
	if err := o.Check(); err != nil {
		return o, err
	}
	return o, o.Timing.Validate()
}

// Check reports what cannot be of what has no default.
func (o Options) Check() error {
	directories := min(o.Directories, o.Nodes)
	switch {
	case o.Nodes < 2 || o.Sessions < o.Nodes:
		return errors.New("it takes two nodes, and a session for each")
	case o.Directories < 1 || o.Watchers < 0 || o.Boot < 0 || o.Steady < 0:
		return errors.New("one node at least keeps a directory, and watchers, boot and steady have to be 0 or more")
	case !(o.Lost > 0 && o.Lost < 1) || o.lostNodes() > o.Nodes-directories:
		return fmt.Errorf("the lost share is %v: it has to be over 0 and under 1, and leave the %d nodes with a directory", o.Lost, directories)
	}
	return nil
}

// lostNodes is how many nodes vanish, one at least.
func (o Options) lostNodes() int { return max(1, int(float64(o.Nodes)*o.Lost+0.5)) }

// Run brings a fleet up, measures it at rest, has some of its nodes vanish, and
// measures the time until every client that asks for one of their sessions
// has it again.
func Run(ctx context.Context, o Options) (bench.Result, error) {
	o, err := o.withDefaults()
	if err != nil {
		return bench.Result{}, err
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-scale-")
	if err != nil {
		return bench.Result{}, err
	}
	defer os.RemoveAll(dir)
	say := func(format string, args ...any) { fmt.Fprintf(o.Progress, format+"\n", args...) }

	say("starting an etcd of three members")
	etcd, err := startMembers(ctx, o.Member, dir)
	if err != nil {
		return bench.Result{}, err
	}
	defer etcd.stop()
	s := newSimulation(o, dir, etcd)
	defer s.stop()

	say("starting %d nodes", o.Nodes)
	if err := s.startNodes(ctx); err != nil {
		return bench.Result{}, err
	}
	say("writing %d session records", o.Sessions)
	if err := s.fill(ctx); err != nil {
		return bench.Result{}, err
	}
	say("measuring for %v", o.Steady)
	if err := s.steady(ctx); err != nil {
		return bench.Result{}, err
	}
	say("%d of %d nodes vanish", o.lostNodes(), o.Nodes)
	if err := s.lose(ctx); err != nil {
		return bench.Result{}, err
	}
	say("measuring a directory in a process of its own")
	if err := s.measureDirectory(ctx); err != nil {
		return bench.Result{}, err
	}
	return s.result(), nil
}
