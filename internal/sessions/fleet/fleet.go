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

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// Local is what this node does itself. Its methods may be called from any
// goroutine and return when ctx is done.
type Local interface {
	// Acquire boots the session here if it must, waits until it is ready and
	// counts a connection, until the function is called. Errors:
	// *holdfast.ElsewhereError when the claim was lost, holdfast.ErrDraining,
	// ErrBusy, ErrStore, ErrEngine, a *holdfast.BootError, ctx's.
	Acquire(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Route, func(), error)
	// Join is Acquire for what this node has already, booting, ready or
	// leaving: it begins nothing. holdfast.ErrNotFound as soon as this node
	// has it no longer.
	Join(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, func(), error)
	// Refused tells that the route could not be reached.
	Refused(key holdfast.SessionKey, r holdfast.Route)
}

// Config is what a Fleet needs to know.
type Config struct {
	Node holdfast.NodeID // this one
	// MaxShare is the share of all nodes, 0 to 1, that may be out of rotation
	// because they are degraded; 0: none is.
	MaxShare float64
}

// Deps is what a Fleet works with.
type Deps struct {
	Store store.Store
	Local Local
	Dial  Dial
	// Fetch makes sure that this node has the template's images, with those
	// of its init steps.
	Fetch func(ctx context.Context, template string) error
	// CanRun is why sessions of the template cannot be had on this node, nil
	// where they can; nil: all can.
	CanRun func(template string) error
	// Caller is the node that sent a request, by its certificate; "" for
	// none of the fleet.
	Caller func(*http.Request) holdfast.NodeID
	// Draining reports whether this node takes no new session, so that it
	// is nobody's successor. nil: never.
	Draining func() bool
	// OnOwnRecord hears of every record of this node that the directory learns of;
	// it must not block or call back. nil: nobody.
	OnOwnRecord func(holdfast.Owner)
	// OnClaim hears of every claim that the directory learns of, this node's too;
	// it must not block or call back. nil: nobody.
	OnClaim func(holdfast.SessionKey, holdfast.Epoch)
	// ReceiveImage takes images in; nil: this node takes none.
	ReceiveImage Receive
	// GiveImage writes the image of a session's life to w, which is gone here then; nil:
	// this node has none. holdfast.ErrNotFound before anything is written.
	GiveImage func(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, w io.Writer) error
	// PreferredNode is the node that has an image of a session that nobody serves, "" for
	// none; nil: there are none.
	PreferredNode func(ctx context.Context, key holdfast.SessionKey) holdfast.NodeID
	Metrics       *Metrics
	Log           *slog.Logger
}

// Fleet finds where sessions are served and has them served. Any goroutine may
// call its methods; they work while Run does.
type Fleet struct {
	cfg   Config
	deps  Deps
	log   *slog.Logger
	dir   *Directory
	nodes *nodes
	peers *peers
	next  *expected

	mu         sync.Mutex
	tasks      tasks.Group // open while Run is active; sealed with mu held
	calls      map[keyLookup]*call
	fetches    map[string]*fetching // by template, under way
	successors map[holdfast.SessionKey]successor
}

// New returns a Fleet that does nothing yet.
func New(cfg Config, deps Deps) *Fleet {
	f := &Fleet{
		cfg: cfg, deps: deps, log: deps.Log,
		dir:   NewDirectory(deps.Store, cfg.Node, deps.Metrics, deps.Log),
		nodes: newNodes(deps.Store, cfg.Node, rand.IntN),
		peers: newPeers(deps.Dial, deps.Metrics),
		calls: map[keyLookup]*call{}, successors: map[holdfast.SessionKey]successor{},
		fetches: map[string]*fetching{},
	}
	f.nodes.share = cfg.MaxShare
	f.next = newExpected(f)
	f.dir.gone = f.next.gone
	if deps.Draining == nil {
		f.deps.Draining = func() bool { return false }
	}
	if deps.OnOwnRecord != nil {
		f.dir.own = deps.OnOwnRecord
	}
	if deps.OnClaim != nil {
		f.dir.claimed = deps.OnClaim
	}
	return f
}

// Directory is the fleet's sessions as this node knows them.
func (f *Fleet) Directory() *Directory { return f.dir }

// Run keeps the directory, answers and asks until ctx is done. When it returns,
// nothing of it runs any more. It is called once.
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

// ended reports whether Run has returned, or is about to.
func (f *Fleet) ended() bool {
	ctx := f.tasks.Context()
	return ctx == nil || ctx.Err() != nil
}
