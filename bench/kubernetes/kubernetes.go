// Package kubernetes is the experiment of `holdfast-bench kubernetes`: it measures the cost
// of agents for a cluster. A real API server with a real etcd serves thousands of real
// reporters (internal/hosts/kube/node), whose doctors find nothing. One more agent is the
// program itself.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"holdfast/bench"
	"holdfast/internal/hosts/kube"
)

// Options is the size of the cluster.
type Options struct {
	Nodes     int           // simulated, 1 to 20,000
	For       time.Duration // time of the measurement at rest, over 0
	Idle      time.Duration // idle time after which an agent closes a connection; 0: the agents' default
	APIServer string        // path of the kube-apiserver
	Manifests string        // directory with kustomization.yaml: the agents' accounts and permissions
	Renew     time.Duration // renewal interval of the agents' leases; 0: the agents' default. For tests

	Member   []string // command of an etcd member; see rig.Member
	Agent    []string // command of the real agent; nil: none
	Progress io.Writer
}

// Allowed is the maximum number of requests per second of an agent at rest.
const Allowed = 0.02

// Limits of Options.
const (
	maxNodes = 20_000
	maxFor   = time.Hour // tokens expire then
)

// Check returns an error for impossible options.
func (o Options) Check() error {
	switch {
	case o.Nodes < 1 || o.Nodes > maxNodes:
		return fmt.Errorf("%d nodes are not from 1 to %d", o.Nodes, maxNodes)
	case o.For <= 0 || o.For > maxFor/2:
		return fmt.Errorf("%v is not over 0 and up to %v", o.For, maxFor/2)
	case o.Idle < 0 || o.Renew < 0:
		return errors.New("times have to be 0 or more")
	case o.APIServer == "":
		return errors.New("--apiserver names a kube-apiserver; packaging/dev/kube.sh builds one")
	}
	return nil
}

// usual is the default renewal interval of a lease, which Allowed assumes.
const usual = 2 * time.Minute

func (o Options) renew() time.Duration { return cmp.Or(o.Renew, usual) }

// before is the time of the measurement without agents.
const before = 20 * time.Second

// Run starts a cluster and the agents, and measures them when all have reported their nodes.
func Run(ctx context.Context, o Options) (r bench.Result, err error) {
	if err := o.Check(); err != nil {
		return r, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-kubernetes-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	say := func(format string, args ...any) { fmt.Fprintf(o.Progress, format+"\n", args...) }

	say("starting etcd and an API server")
	c, err := startCluster(ctx, o, dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	say("making %d nodes, and a pod and a token for each agent", o.Nodes)
	if err := c.fill(ctx); err != nil {
		return r, err
	}
	s := &simulation{o: o, cluster: c}
	alone := min(before, o.For)
	say("measuring the API server without agents for %v", alone)
	if s.idle, err = s.window(ctx, alone); err != nil {
		return r, err
	}
	defer s.stop()
	if err := s.startReal(ctx); err != nil {
		return r, err
	}
	say("starting %d agents", o.Nodes)
	if err := s.startAgents(ctx); err != nil {
		return r, err
	}
	rest := o.renew()
	say("letting them come to rest for %v", rest)
	if err := kube.Sleep(ctx, rest); err != nil {
		return r, err
	}
	say("measuring for %v", o.For)
	if s.steady, err = s.window(ctx, o.For); err != nil {
		return r, err
	}
	return s.result()
}
