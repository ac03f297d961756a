package bench

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/session"
	"holdfast/internal/store"
	"holdfast/internal/store/etcd"
)

// slots is how many containers a simulated node starts at once, as
// sessions.boots is by default.
const slots = 8

// simNode is a node without a host: its lease, its record and its claims are
// real, its containers take their time and nothing else.
type simNode struct {
	id    holdfast.NodeID
	store meteredStore
	lease *session.Lease
	boot  time.Duration

	slots    chan struct{}
	booting  atomic.Int64
	sessions atomic.Int64

	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// startNode connects a node and has it renew and publish until it is stopped.
func startNode(ctx context.Context, n int, o ScaleOptions, dir string, endpoints []string, m *meter) (*simNode, error) {
	id := holdfast.NodeID(fmt.Sprintf("node-%04d", n))
	// Each client begins at another member.
	own := append(append([]string{}, endpoints[n%len(endpoints):]...), endpoints[:n%len(endpoints)]...)
	s, err := etcd.Dial(ctx, etcd.Config{Endpoints: own, DialTimeout: time.Minute})
	if err != nil {
		return nil, err
	}
	node := &simNode{id: id, store: meteredStore{s, m}, boot: o.Boot, slots: make(chan struct{}, slots)}
	t := o.Timing
	node.lease = session.NewLease(session.LeaseConfig{
		File: filepath.Join(dir, string(id)), TTL: t.TTL, Renew: t.Renew, Publish: t.Renew, Fence: t.Fence, KillBudget: t.KillBudget,
	}, node.store, slog.New(slog.DiscardHandler))
	if err := node.lease.Hold(ctx); err != nil {
		return nil, fmt.Errorf("node %s: %w", id, closeAfter(err, s))
	}
	ctx, node.cancel = context.WithCancel(ctx)
	node.ended.Go(func() {
		// It returns no error but that of its end.
		_ = node.lease.Run(ctx, node.self, func(context.Context) { m.fenced.Add(1) })
	})
	return node, nil
}

func closeAfter(err error, s *etcd.Store) error {
	_ = s.Close() // the error that matters is there already
	return err
}

// self is the record that the node publishes, as long as a real one.
func (n *simNode) self() holdfast.Node {
	now := time.Now().UTC()
	return holdfast.Node{
		ID: n.id, Address: "10.1.2.3:7070", Hop: "10.1.2.3:7072", Version: "v0.0.0-scale",
		Sessions: int(n.sessions.Load()), Max: 1000, Boots: int(n.booting.Load()), Slots: slots,
		CPULoad: float64(n.booting.Load()) / (2 * slots), Memory: holdfast.Memory{Total: 64 << 30, Available: 32 << 30},
		Lease: int64(n.lease.ID()), Since: now, SeenAt: now,
	}
}

// vanish ends the node as a machine that is switched off does: nothing is given
// up, nobody is told.
func (n *simNode) vanish() {
	n.cancel()
	n.ended.Wait()
	_ = n.store.Store.(*etcd.Store).Close() // what it says of its end is nobody's business
}

// record is a session's record as it is in a state, as long as a real one.
func (n *simNode) record(key holdfast.SessionKey, state holdfast.State) holdfast.Owner {
	o := holdfast.Owner{Key: key, Node: n.id, State: state, Template: "workspace", ClaimedAt: time.Now().UTC()}
	if state == holdfast.Ready {
		complete(&o)
	}
	return o
}

// complete adds what a record has from ready on.
func complete(o *holdfast.Owner) {
	ms := func(n int) holdfast.Millis {
		return holdfast.Millis(time.Duration(n)*time.Millisecond + 123*time.Microsecond)
	}
	o.State, o.ContainerID, o.Address = holdfast.Ready, containerID, "172.17.12.34:8080"
	o.ReadyAt = time.Now().UTC()
	o.Boot = holdfast.Phases{Claim: ms(3), Create: ms(40), Start: ms(180), Ready: ms(12)}
}

const containerID = "4c01db0b339c8f1d0c58bcf0a3cfdd0fb8ac8bbfc4e5b6a3c8bb34f3d9a0d9ad"

// start boots a session here: the writes of a real boot, and the time of its
// container.
func (n *simNode) start(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	n.booting.Add(1)
	defer n.booting.Add(-1)
	select {
	case n.slots <- struct{}{}:
		defer func() { <-n.slots }()
	case <-ctx.Done():
		return holdfast.Owner{}, ctx.Err()
	}
	o, err := n.store.Claim(ctx, n.record(key, holdfast.Claimed), n.lease.ID())
	if err != nil {
		return o, err
	}
	n.sessions.Add(1)
	o.State = holdfast.Starting
	if o, err = n.store.Advance(ctx, o); err != nil {
		return o, err
	}
	select {
	case <-time.After(n.boot):
	case <-ctx.Done():
		return o, ctx.Err()
	}
	complete(&o)
	return n.store.Advance(ctx, o)
}

// meteredStore is a node's store, with its calls and its watch measured.
type meteredStore struct {
	store.Store
	meter *meter
}

func (s meteredStore) KeepAlive(ctx context.Context, id store.LeaseID) error {
	start := time.Now()
	err := s.Store.KeepAlive(ctx, id)
	s.meter.call("renew the lease", start, err)
	return err
}

func (s meteredStore) PutNode(ctx context.Context, n holdfast.Node, id store.LeaseID) error {
	start := time.Now()
	err := s.Store.PutNode(ctx, n, id)
	s.meter.call("write the node's record", start, err)
	return err
}

func (s meteredStore) Claim(ctx context.Context, o holdfast.Owner, id store.LeaseID) (holdfast.Owner, error) {
	start := time.Now()
	o, err := s.Store.Claim(ctx, o, id)
	s.meter.call("claim", start, err)
	return o, err
}

// Watch passes on, with the time since a record was written: claims carry it.
func (s meteredStore) Watch(ctx context.Context, after holdfast.Revision) <-chan store.Event {
	out := make(chan store.Event)
	go func() {
		defer close(out)
		for e := range s.Store.Watch(ctx, after) {
			s.meter.event(e)
			select {
			case out <- e:
			case <-ctx.Done(): // and Watch closes its channel
			}
		}
	}()
	return out
}
