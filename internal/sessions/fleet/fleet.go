package fleet

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// Local is what this node does itself. Any goroutine may call its methods. They return
// when ctx is done.
type Local interface {
	// Acquire boots the session here if necessary and waits until it is ready. It
	// counts a connection until the returned function is called. Errors:
	// *holdfast.ElsewhereError if another node won the claim, holdfast.ErrDraining,
	// ErrBusy, ErrStore, ErrEngine, a *holdfast.BootError, or ctx's error.
	Acquire(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Route, func(), error)
	// Ready is Acquire for a session that is ready here and never sleeps. It does not
	// wait.
	Ready(key holdfast.SessionKey) (r holdfast.Route, release func(), ok bool)
	// Join is Acquire for a session that this node already has (booting, ready or
	// leaving). It does not start a boot. It returns holdfast.ErrNotFound as soon as
	// this node no longer has the session.
	Join(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, func(), error)
	// Refused reports that the route could not be reached.
	Refused(key holdfast.SessionKey, r holdfast.Route)
	// AwaitGone waits while this node has a session of that key that leaves. The error is
	// that of ctx.
	AwaitGone(ctx context.Context, key holdfast.SessionKey) error
}

// Config is the configuration of a Fleet.
type Config struct {
	Node holdfast.NodeID // this node
	// MaxShare is the share of all nodes, 0 to 1, that may be out of rotation because
	// they are degraded. With 0 no node is out of rotation.
	MaxShare float64
}

// Deps are the dependencies of a Fleet.
type Deps struct {
	Store store.Store
	Local Local
	Dial  Dial
	// Fetch ensures that this node has the images of the template and of its init
	// steps.
	Fetch func(ctx context.Context, template string) error
	// CanRun returns why this node cannot run sessions of the template, or nil if it
	// can.
	CanRun func(template string) error
	// Caller returns the node that sent a request, according to its certificate, or ""
	// if the sender is not a node of the fleet.
	Caller func(*http.Request) holdfast.NodeID
	// Draining reports whether this node accepts no new session. A draining node is
	// not chosen as a successor.
	Draining func() bool
	// OnOwnRecord is called for every record of this node that the directory learns
	// of. It must not block or call back.
	OnOwnRecord func(holdfast.Owner)
	// OnEvent is called for every event of the watch. It must not block or call back.
	// It may be nil.
	OnEvent func(store.Event)
	// OnClaim is called for every claim that the directory learns of, including those
	// of this node. It must not block or call back. It may be nil.
	OnClaim func(holdfast.SessionKey, holdfast.Epoch)
	// OnNodeLost is called on some nodes of the fleet for a session of another node whose
	// record is gone together with that node's own: its lease has ended. It may be nil.
	OnNodeLost func(holdfast.Owner)
	// ReceiveImage receives images. If it is nil, this node accepts no images.
	ReceiveImage Receive
	// GiveImage writes the image of one epoch of a session to w and then deletes it
	// here. If this node does not have the image, it returns holdfast.ErrNotFound
	// before it writes anything. If GiveImage is nil, this node keeps no images.
	GiveImage func(ctx context.Context, key holdfast.SessionKey, epoch, last holdfast.Epoch, w io.Writer) error
	// GiveSnapshot is GiveImage of the snapshot of that name and epoch, which stays here. It
	// is set if GiveImage is.
	GiveSnapshot func(ctx context.Context, name holdfast.SessionKey, epoch holdfast.Epoch, w io.Writer) error
	// PreferredNode returns the node that has an image of a session without an owner,
	// or "" if no node has one. If PreferredNode is nil, there are no images.
	PreferredNode func(ctx context.Context, key holdfast.SessionKey) holdfast.NodeID
	// KeepSuspended moves the image of a suspended session to this node. If it is nil, there are
	// no images.
	KeepSuspended func(ctx context.Context, key holdfast.SessionKey, template string) error
	// IsSuspended reports whether a session without an owner is suspended.
	IsSuspended func(ctx context.Context, key holdfast.SessionKey) (bool, error)
	Metrics     *Metrics
	Log         *slog.Logger
}

// Fleet finds the node that serves a session, and has the session booted if no node
// does. Any goroutine may call its methods. They work while Run is active.
type Fleet struct {
	cfg   Config
	deps  Deps
	log   *slog.Logger
	dir   *Directory
	nodes *nodes
	peers *peers
	next  *expected
	lost  chan holdfast.Owner // records that were deleted without a plan

	mu         sync.Mutex
	tasks      tasks.Group // open while Run is active; sealed with mu held
	calls      map[keyLookup]*call
	fetches    singleflight.Group // by template
	successors map[holdfast.SessionKey]successor
}

// New returns a Fleet that is not running yet.
func New(cfg Config, deps Deps) *Fleet {
	f := &Fleet{
		cfg: cfg, deps: deps, log: deps.Log,
		dir:   NewDirectory(deps.Store, cfg.Node, deps.Metrics, deps.Log),
		nodes: newNodes(deps.Store, cfg.Node, rand.IntN),
		peers: newPeers(deps.Dial, deps.Metrics),
		calls: map[keyLookup]*call{}, successors: map[holdfast.SessionKey]successor{},
	}
	f.nodes.share = cfg.MaxShare
	f.next = newExpected(f)
	f.dir.gone = f.next.gone
	f.dir.own = deps.OnOwnRecord
	if deps.OnEvent != nil {
		f.dir.event = deps.OnEvent
	}
	if deps.OnNodeLost != nil {
		f.lost = make(chan holdfast.Owner, maxVanished)
		f.dir.vanished = f.vanished
	}
	if deps.OnClaim != nil {
		f.dir.claimed = deps.OnClaim
	}
	return f
}

// Directory returns the sessions of the fleet as this node knows them.
func (f *Fleet) Directory() *Directory { return f.dir }

// Run updates the directory, answers other nodes and sends requests to them until ctx
// is done. When Run returns, none of its goroutines is running. It is called once.
func (f *Fleet) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	f.mu.Lock()
	err := f.tasks.Open(ctx)
	f.mu.Unlock()
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}

	g.Go(func() error { return f.dir.Run(ctx) })
	g.Go(func() error { f.next.run(ctx); return nil })
	g.Go(func() error { f.reportLost(ctx); return nil })
	err = g.Wait()
	f.mu.Lock()
	f.tasks.Seal()
	f.mu.Unlock()
	f.tasks.Close()
	f.peers.close()
	return err
}

func (f *Fleet) errNotRunning() error {
	return fmt.Errorf("node %s is starting or stopping: %w", f.cfg.Node, holdfast.ErrDraining)
}

// ended reports whether Run has returned or is about to return.
func (f *Fleet) ended() bool {
	ctx := f.tasks.Context()
	return ctx == nil || ctx.Err() != nil
}
