package scale

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/bench/rig"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/fleet"
)

// Concurrent requests to etcd while the fleet starts, before the measurements.
const (
	startsAtOnce = 8
	claimsAtOnce = 128
)

// simulation is one run of the bench.
type simulation struct {
	o      Options
	dir    string
	etcd   *members
	meter  *meter
	random *rand.Rand // used by the bench's goroutine only
	usage  []usage

	network *network
	metrics *fleet.Metrics // of all nodes together
	nodes   []*simNode
	alive   []*simNode // nodes that have not vanished
	counts  []*counter
	lost    int // sessions
	took    time.Duration
	failed  atomic.Int64

	directory directoryReport
}

func newSimulation(o Options, dir string, etcd *members) *simulation {
	return &simulation{
		o: o, dir: dir, etcd: etcd, meter: newMeter(),
		random:  rand.New(rand.NewPCG(uint64(o.Seed), 0)),
		network: newNetwork(), metrics: fleet.NewMetrics(prometheus.NewRegistry()),
	}
}

// stop ends everything that the simulation has started.
func (s *simulation) stop() {
	for _, c := range s.counts {
		c.stop()
	}
	var ended sync.WaitGroup
	for _, n := range s.alive {
		ended.Go(n.vanish)
	}
	ended.Wait()
}

// startNodes starts all nodes, with their directories.
func (s *simulation) startNodes(ctx context.Context) error {
	nodes := make([]*simNode, s.o.Nodes)
	group, starting := errgroup.WithContext(ctx)
	group.SetLimit(startsAtOnce)
	for i := range nodes {
		group.Go(func() error {
			// The node lives as long as ctx, not as the group.
			if err := starting.Err(); err != nil {
				return err
			}
			n, err := s.startNode(ctx, i)
			nodes[i] = n
			return err
		})
	}
	err := group.Wait()
	for _, n := range nodes {
		if n != nil {
			s.nodes = append(s.nodes, n)
		}
	}
	s.alive = append(s.alive, s.nodes...)
	return err
}

// fill makes every node claim its share of the sessions. They are ready at once, because
// these boots are not measured.
func (s *simulation) fill(ctx context.Context) error {
	if err := s.reading(ctx); err != nil {
		return err
	}
	s.meter.begin(partFill)
	defer s.meter.begin("")
	if err := s.claimAll(ctx); err != nil {
		return err
	}
	for _, n := range s.nodes[:s.o.Directories] {
		if err := s.complete(ctx, n); err != nil {
			return err
		}
	}
	return s.reading(ctx)
}

// complete waits until a node's directory has all sessions.
func (s *simulation) complete(ctx context.Context, n *simNode) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	for n.fleet.Directory().Len() < s.o.Sessions {
		if tasks.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the directory of %s has %d of %d sessions: %w", n.id, n.fleet.Directory().Len(), s.o.Sessions, ctx.Err())
		}
	}
	return nil
}

func (s *simulation) claimAll(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(claimsAtOnce)
	for i := range s.o.Sessions {
		n := s.nodes[i%len(s.nodes)]
		group.Go(func() error {
			key := keyOf(i)
			for {
				o, err := n.store.Claim(ctx, n.record(key, holdfast.Ready), n.lease.ID())
				if err == nil || o.Node == n.id { // the answer to the first claim was lost
					n.sessions.Add(1)
					return nil
				}
				if !errors.Is(err, holdfast.ErrStore) || ctx.Err() != nil {
					return fmt.Errorf("filling the store: %w", err)
				}
			}
		})
	}
	return group.Wait()
}

func keyOf(i int) holdfast.SessionKey {
	return holdfast.SessionKey(fmt.Sprintf("workspace-%08d", i))
}

// Names of the run's parts, as rows have them.
const (
	partFill   = "filling"
	partSteady = "steady"
	partLoss   = "after the loss"
)

// probeEvery is the interval at which the steady fleet gets and loses a session, to measure
// the delay of watches.
const probeEvery = 20 * time.Millisecond

// steady measures the fleet at rest: background work of the nodes, and a session for each
// probe.
func (s *simulation) steady(ctx context.Context) error {
	for i := range s.o.Watchers {
		c, err := startCounter(ctx, s.etcd.Members[i%len(s.etcd.Members)].Client)
		if err != nil {
			return err
		}
		s.counts = append(s.counts, c)
	}
	if err := s.reading(ctx); err != nil {
		return err
	}
	s.meter.begin(partSteady)
	defer s.meter.begin("")
	end := time.After(s.o.Steady)
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	var probes sync.WaitGroup
	defer probes.Wait()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return s.reading(ctx)
		case <-tick.C:
			n := s.nodes[s.random.IntN(len(s.nodes))]
			probes.Go(func() { s.probe(ctx, n, holdfast.SessionKey(fmt.Sprintf("probe-%08d", i))) })
		}
	}
}

// probe claims a session and releases it.
func (s *simulation) probe(ctx context.Context, n *simNode, key holdfast.SessionKey) {
	o, err := n.store.Claim(ctx, n.record(key, holdfast.Claimed), n.lease.ID())
	if err == nil {
		_, err = n.store.Release(ctx, o)
	}
	if err != nil {
		s.failed.Add(1)
	}
}

func (s *simulation) reading(ctx context.Context) error {
	u, err := s.use(ctx)
	s.usage = append(s.usage, u)
	return err
}
