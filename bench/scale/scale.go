// Package scale is the experiment of `holdfast-bench scale`: it simulates a large fleet in
// one process. The nodes have the real store client, lease, directory and placement, and
// containers that only take time. The store is a real etcd cluster of three members.
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

// Options is the size of the fleet.
type Options struct {
	Nodes       int           // over 1
	Sessions    int           // records in the store, spread over the nodes
	Lost        float64       // share of the nodes that vanish at once, over 0 and under 1
	Directories int           // nodes with a directory of their own; the others ask these; 0 is 1
	Watchers    int           // additional watches of all records, which only count; in a real fleet each node has one
	Boot        time.Duration // time of a container from create to ready
	Steady      time.Duration // time of the measurement before the loss
	Timing      holdfast.Timing
	Patience    time.Duration // maximum wait after the loss; 0 is 2 minutes
	Seed        int64         // of the random choices: the nodes that vanish, the clients' nodes; 0 is 1

	Member    []string // command of an etcd member; see rig.Member
	Directory []string // command that runs MeasureDirectory
	Progress  io.Writer
}

// withDefaults replaces zeros by defaults, and checks the rest.
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

// Check returns an error for impossible values of the options without a default.
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

// lostNodes returns the number of nodes that vanish, at least one.
func (o Options) lostNodes() int { return max(1, int(float64(o.Nodes)*o.Lost+0.5)) }

// Run starts a fleet, measures it at rest, and makes some of its nodes vanish. It measures
// the time until every client of a lost session has its session again.
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
