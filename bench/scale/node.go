package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/etcd"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/session"
)

// slots is the number of containers that a simulated node starts at once, the default of
// sessions.boots.
const slots = 8

// simNode is a node without a host. Its lease, record, claims and fleet are real. Its
// containers only take time.
type simNode struct {
	id      holdfast.NodeID
	since   time.Time
	sighted bool // it has a directory
	store   meteredStore
	lease   *session.Lease
	fleet   *fleet.Fleet
	server  *http.Server
	wire    *pipes
	meter   *meter
	boot    time.Duration
	max     int

	slots    chan struct{}
	booting  atomic.Int64
	sessions atomic.Int64

	mu     sync.Mutex
	booted map[holdfast.SessionKey]*booted

	life   context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// booted is a session that a client has requested from the node.
type booted struct {
	done  chan struct{}
	owner holdfast.Owner // valid when done is closed
	err   error
}

// startNode connects a node. Until it vanishes, the node renews its lease, publishes its
// record and answers.
func (s *simulation) startNode(ctx context.Context, i int) (*simNode, error) {
	n := &simNode{
		id: holdfast.NodeID(fmt.Sprintf("node-%04d", i)), since: time.Now().UTC(), sighted: i < s.o.Directories, meter: s.meter, boot: s.o.Boot, max: max(1000, 4*s.o.Sessions/s.o.Nodes),
		wire: newPipes(), slots: make(chan struct{}, slots), booted: map[holdfast.SessionKey]*booted{},
	}
	// The clients begin at different members.
	e := s.etcd.Endpoints()
	own := append(append([]string{}, e[i%len(e):]...), e[:i%len(e)]...)
	client, err := etcd.Dial(ctx, etcd.Config{Endpoints: own, DialTimeout: time.Minute})
	if err != nil {
		return nil, err
	}
	n.store = meteredStore{client, s.meter}
	t, log := s.o.Timing, slog.New(slog.DiscardHandler)
	n.lease = session.NewLease(session.LeaseConfig{
		Node: n.id, File: filepath.Join(s.dir, string(n.id)), TTL: t.TTL, Renew: t.Renew, Publish: t.Renew, Fence: t.Fence, KillBudget: t.KillBudget,
	}, n.store, log)
	// An agent without a lease ends, and its service manager restarts it.
	err = n.lease.Hold(ctx)
	for try := 0; errors.Is(err, holdfast.ErrStore) && try < 10; try++ {
		err = n.lease.Hold(ctx)
	}
	if err != nil {
		_ = client.Close() // err is the error that matters
		return nil, fmt.Errorf("node %s: %w", n.id, err)
	}
	deps := fleet.Deps{
		Store: n.store, Local: n, Dial: s.network.dialer(n.id), Caller: callerOf, Metrics: s.metrics, Log: log,
		Fetch:       func(context.Context, string) error { return nil },
		CanRun:      func(string) error { return nil },
		Draining:    func() bool { return false },
		OnOwnRecord: func(holdfast.Owner) {},
	}
	if !n.sighted {
		deps.Store = blindStore{n.store}
	}
	n.fleet = fleet.New(fleet.Config{Node: n.id}, deps)
	n.server = &http.Server{Handler: n.fleet.Handler(), ConnContext: withCaller}
	s.network.join(n.id, n.wire)
	n.run(ctx)
	return n, nil
}

// run starts the background tasks of a node. They return an error only at the end.
func (n *simNode) run(ctx context.Context) {
	n.life, n.cancel = context.WithCancel(ctx)
	n.ended.Go(func() {
		_ = n.lease.Run(n.life, n.self, n.fence)
	})
	n.ended.Go(func() { _ = n.fleet.Run(n.life) })
	n.ended.Go(func() { _ = n.server.Serve(n.wire) })
}

// fence ends the node's sessions, because it could not renew its lease in time.
func (n *simNode) fence(context.Context) {
	n.meter.fenced.Add(1)
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.booted)
	n.sessions.Store(0)
}

// vanish ends the node as if its machine were switched off: it releases nothing and tells no
// other node.
func (n *simNode) vanish() {
	n.cancel()
	_ = n.server.Close()
	n.ended.Wait()
	_ = n.store.Store.(*etcd.Store).Close()
}

// self returns the record that the node publishes. It is as long as a real one.
func (n *simNode) self() holdfast.Node {
	return holdfast.Node{
		ID: n.id, Address: "10.1.2.3:7070", PeerAddress: "10.1.2.3:7072", Version: "v0.0.0-scale",
		Sessions: int(n.sessions.Load()), Max: n.max, Boots: int(n.booting.Load()), Slots: slots,
		CPULoad: 0.1 + float64(n.booting.Load())/(2*slots), Pressure: 0.0123, Memory: holdfast.Memory{Total: 64 << 30, Available: 32 << 30},
		Lease: int64(n.lease.ID()), Since: n.since, SeenAt: time.Now().UTC(),
	}
}

// Acquire boots a session: the writes of a real boot, and the time of its container.
func (n *simNode) Acquire(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Route, func(), error) {
	n.mu.Lock()
	b := n.booted[key]
	if b == nil {
		b = &booted{done: make(chan struct{})}
		n.booted[key] = b
		n.ended.Go(func() { n.start(key, template, b) })
	}
	n.mu.Unlock()
	return n.await(ctx, key, b)
}

// Ready implements fleet.Local. Join has the sessions of this node.
func (n *simNode) Ready(holdfast.SessionKey) (holdfast.Route, func(), bool) {
	return holdfast.Route{}, nil, false
}

// Join waits for a session of this node.
func (n *simNode) Join(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, func(), error) {
	n.mu.Lock()
	b := n.booted[key]
	n.mu.Unlock()
	if b == nil {
		return holdfast.Route{}, nil, fmt.Errorf("session %s on this node: %w", key, holdfast.ErrNotFound)
	}
	return n.await(ctx, key, b)
}

// Refused implements fleet.Local. This node has no gateway that could fail to reach a route.
func (n *simNode) Refused(holdfast.SessionKey, holdfast.Route) {}

func (n *simNode) AwaitGone(ctx context.Context, _ holdfast.SessionKey) error { return ctx.Err() }

func (n *simNode) await(ctx context.Context, key holdfast.SessionKey, b *booted) (holdfast.Route, func(), error) {
	select {
	case <-b.done:
	case <-ctx.Done():
		return holdfast.Route{}, nil, ctx.Err()
	}
	if b.err != nil {
		return holdfast.Route{}, nil, b.err
	}
	return holdfast.Route{Key: key, Address: b.owner.Address, Epoch: b.owner.Epoch}, func() {}, nil
}

func (n *simNode) start(key holdfast.SessionKey, template string, b *booted) {
	b.owner, b.err = n.bootOnce(key, template)
	n.mu.Lock()
	if b.err != nil && n.booted[key] == b {
		delete(n.booted, key)
	}
	n.mu.Unlock()
	close(b.done)
}

func (n *simNode) bootOnce(key holdfast.SessionKey, template string) (holdfast.Owner, error) {
	n.booting.Add(1)
	defer n.booting.Add(-1)
	select {
	case n.slots <- struct{}{}:
		defer func() { <-n.slots }()
	case <-n.life.Done():
		return holdfast.Owner{}, n.life.Err()
	}
	o, err := n.claim(key)
	if err != nil {
		return o, err
	}
	n.sessions.Add(1)
	n.meter.owned()
	o.State = holdfast.Starting
	if o, err = n.advance(o); err != nil {
		return o, err
	}
	if tasks.Sleep(n.life, n.boot) != nil {
		return o, n.life.Err()
	}
	complete(&o)
	return n.advance(o)
}

// claim retries while the store does not answer. After a lost answer it recognizes its own
// record, as a real boot does.
func (n *simNode) claim(key holdfast.SessionKey) (holdfast.Owner, error) {
	for {
		o, err := n.store.Claim(n.life, n.record(key, holdfast.Claimed), n.lease.ID())
		switch {
		case errors.Is(err, store.ErrTaken) && o.Node == n.id:
			return o, nil
		case errors.Is(err, store.ErrTaken):
			return o, &holdfast.ElsewhereError{Owner: o}
		case !errors.Is(err, holdfast.ErrStore):
			return o, err
		}
	}
}

// advance is claim for a record that the node owns already.
func (n *simNode) advance(o holdfast.Owner) (holdfast.Owner, error) {
	for {
		now, err := n.store.Advance(n.life, o)
		switch {
		case errors.Is(err, store.ErrStale) && now.Epoch == o.Epoch && now.State == o.State:
			return now, nil
		case !errors.Is(err, holdfast.ErrStore):
			return now, err
		}
	}
}

// record returns a session's record in a state. It is as long as a real one.
func (n *simNode) record(key holdfast.SessionKey, state holdfast.State) holdfast.Owner {
	o := holdfast.Owner{Key: key, Node: n.id, State: state, Template: "workspace", ClaimedAt: time.Now().UTC()}
	if state == holdfast.Ready {
		complete(&o)
	}
	return o
}

// complete adds the fields that a record has from the state ready on.
func complete(o *holdfast.Owner) {
	ms := func(n int) holdfast.Millis {
		return holdfast.Millis(time.Duration(n)*time.Millisecond + 123*time.Microsecond)
	}
	o.State, o.ContainerID, o.Address = holdfast.Ready, containerID, "172.17.12.34:8080"
	o.ReadyAt = time.Now().UTC()
	o.Boot = holdfast.Phases{Claim: ms(3), Create: ms(40), Start: ms(180), Ready: ms(12)}
}

const containerID = "4c01db0b339c8f1d0c58bcf0a3cfdd0fb8ac8bbfc4e5b6a3c8bb34f3d9a0d9ad"
