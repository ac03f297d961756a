// Package jobs is the experiment of `holdfast-bench jobs`: a job of many parallel runs on one
// host, and on the nodes of a fleet, beside as many `docker run` at once. All nodes share one
// container engine, because the firewall rules of several in one network namespace collide.
package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"holdfast"
	"holdfast/bench"
	"holdfast/bench/rig"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/tasks"
	"holdfast/test/lab"
)

// Options select the measurements.
type Options struct {
	Program  string    // a build of holdfast
	Member   []string  // the command of an etcd member; see rig.Member
	N        int       // runs of the job; 0 is 24
	Nodes    int       // of the fleet; 0 is 3
	Rounds   int       // jobs of each way, in turns; 0 is 5
	Dockerd  string    // directory of another engine, as for lab.Options.With
	Progress io.Writer // progress lines; nil discards them
}

// Check returns an error for impossible options. It does not accept a zero that means a
// default.
func (o Options) Check() error {
	switch {
	case o.N < 1 || o.N > 256:
		return fmt.Errorf("runs are %d, they have to be 1 to 256", o.N)
	case o.Nodes < 2 || o.Nodes > 9:
		return fmt.Errorf("nodes are %d, they have to be 2 to 9", o.Nodes)
	case o.Rounds < 1 || o.Rounds > 100:
		return fmt.Errorf("rounds are %d, they have to be 1 to 100", o.Rounds)
	}
	return nil
}

// image is that of the runs: busybox.
const image = "bench-jobs:latest"

// Run measures the ways in turns. It must run inside a lab (lab.Reenter).
//
// Score is the p50 of the job's time on one host divided by that on the fleet. Failed counts
// runs without their output.
func Run(ctx context.Context, o Options) (_ bench.Result, err error) {
	o.N, o.Nodes, o.Rounds = cmp.Or(o.N, 24), cmp.Or(o.Nodes, 3), cmp.Or(o.Rounds, 5)
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if err := o.Check(); err != nil {
		return bench.Result{}, err
	}
	x := &experiment{o: o}
	defer func() { err = errors.Join(err, x.close()) }()
	if x.docker, err = exec.LookPath("docker"); err != nil {
		return bench.Result{}, holdfast.WithHint(fmt.Errorf("the peer docker is not installed: %w", err), "apt-get install docker.io")
	}
	if err := x.prepare(ctx); err != nil {
		return bench.Result{}, x.fleet.Told(err)
	}
	r, err := x.run(ctx)
	return r, x.fleet.Told(err)
}

// experiment is one run.
type experiment struct {
	o      Options
	docker string // the program
	lab    *lab.Engine
	fleet  *rig.Fleet
	first  *rig.Agent // runs the commands
	failed int
}

// prepare starts the engine, etcd and the agents.
func (x *experiment) prepare(ctx context.Context) error {
	err := x.startEngine(ctx)
	if err != nil {
		return err
	}
	if x.fleet, err = rig.StartFleet(ctx, x.lab.Scratch(), x.o.Member); err != nil {
		return err
	}
	for i := range x.o.Nodes {
		a, err := x.boot(ctx, i+1)
		if err != nil {
			return err
		}
		x.first = cmp.Or(x.first, a)
	}
	return x.known(ctx)
}

func (x *experiment) startEngine(ctx context.Context) (err error) {
	if x.lab, err = lab.StartEngine(ctx, lab.Options{}.With(x.o.Dockerd)); err != nil {
		return err
	}
	busybox, err := lab.Busybox()
	if err != nil {
		return err
	}
	busybox.Ref = image
	return x.lab.Import(ctx, busybox)
}

// boot starts the agent of node n, from 1 on.
func (x *experiment) boot(ctx context.Context, n int) (*rig.Agent, error) {
	host := fmt.Sprintf("127.0.1.%d", n)
	a, err := x.fleet.Add(x.o.Program, holdfast.NodeID(fmt.Sprintf("n%d", n)), host)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf(`node: %[1]s
data_dir: %[2]s/data
run_dir: %[2]s/run
engine: {host: %[3]q}
store: {endpoints: [%[4]q], renew: 1s, fence: 20s, kill_budget: 5s, ttl: 30s}
fleet: {listen: "%[5]s:7072", certificates: %[6]s}
gateway: {listen: "%[5]s:7070"}
api: {socket: %[7]s, listen: "%[5]s:7071"}
doctor: {enabled: false}
templates: [{name: unused, image: %[8]q, port: 80, network: bridge}] # one is required
`, a.ID, a.Dir, x.lab.Host(), rig.FleetStore, host, a.Certificates, a.Socket, image)
	if err := os.WriteFile(a.Config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return a, a.Boot(ctx)
}

// known waits until the first agent lists all nodes.
func (x *experiment) known(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	for {
		list, err := x.first.API.Nodes(ctx)
		if err == nil && len(list) == x.o.Nodes {
			return nil
		}
		if tasks.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the first agent lists %d of %d nodes: %w", len(list), x.o.Nodes, errors.Join(ctx.Err(), err))
		}
	}
}

// close kills all processes and removes all files.
func (x *experiment) close() error {
	x.fleet.Close()
	if x.lab == nil {
		return nil
	}
	return x.lab.Stop()
}

// machine describes the host, with the version of the engine.
func (x *experiment) machine(ctx context.Context) (bench.Machine, error) {
	e, err := docker.Open(ctx, docker.Config{Host: x.lab.Host()})
	if err != nil {
		return bench.Machine{}, err
	}
	info, err := e.Info(ctx)
	return bench.EngineMachine(info), errors.Join(err, e.Close())
}
