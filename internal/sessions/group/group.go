// Package group keeps groups of replicas: the sessions of a template with replicas. It
// starts the replicas and replaces them, a new one first, and it gives the gateway one
// address for all of them (docs/adr/replica-groups.md).
package group

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/platform/coalesce"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/replace"
)

// Spec is the configuration of one group. The name is also that of the template.
type Spec struct {
	Name     string
	Replicas int // 1 to holdfast.MaxReplicas
	// CaughtUp is a command in the container of a replica, repeated until its exit code is
	// 0. "{key}" is replaced. Empty: a replica that is ready has caught up.
	CaughtUp     []string
	CatchUpLimit time.Duration // for all repetitions, over 0
	DrainLimit   time.Duration // for the connections of a replica that leaves, over 0
}

// Sessions acts on sessions of any node. Any goroutine may call its methods. They return
// when ctx is done.
type Sessions interface {
	// Start returns the session's record when it is ready, also if it was before.
	Start(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Owner, error)
	// Stop returns when the container is seen dead and the session is released.
	// holdfast.ErrNotFound.
	Stop(ctx context.Context, o holdfast.Owner) (holdfast.KillReport, error)
	// Connections counts the connections of clients. holdfast.ErrNotFound.
	Connections(ctx context.Context, o holdfast.Owner) (int, error)
	// Exec runs a command in the session's container and returns its exit code.
	Exec(ctx context.Context, o holdfast.Owner, command []string, out io.Writer) (int, error)
}

// Config is the configuration of Groups.
type Config struct {
	Node   holdfast.NodeID
	Specs  []Spec // with different names
	Others bool   // other nodes may have gateways
}

// Deps are the dependencies of Groups.
type Deps struct {
	Store    store.Store
	Lease    func() store.LeaseID // the node's present lease; 0: none
	Sessions Sessions
	History  *replace.History // receives the replacements; nil: no history
	Metrics  *Metrics
	Log      *slog.Logger
}

// Groups is the groups of one node's configuration. Any goroutine may call its methods.
type Groups struct {
	cfg   Config
	deps  Deps
	reads *coalesce.Reader[*view]
	seen  atomic.Pointer[view]
}

// New returns Groups that keep nothing yet.
func New(cfg Config, deps Deps) *Groups {
	g := &Groups{cfg: cfg, deps: deps}
	g.reads = coalesce.New(g.readAll)
	return g
}

// readEvery is the interval at which a node with groups reads their records.
const readEvery = 500 * time.Millisecond

// Run keeps the groups until ctx is done. When it returns, none of its goroutines runs. The
// replicas and replacements stay as they are, for the next keeper.
func (g *Groups) Run(ctx context.Context) error {
	var running errgroup.Group
	for _, spec := range g.cfg.Specs {
		running.Go(func() error { newKeeper(g, spec).run(ctx); return nil })
	}
	if len(g.cfg.Specs) > 0 {
		running.Go(func() error { return tasks.Every(ctx, readEvery, func() { g.view(ctx, readEvery) }) })
	}
	<-ctx.Done()
	return running.Wait()
}

// settle is how long after a write of a record a gateway may still act on the record
// before it: the age of its copy, and as much again for the request.
func (g *Groups) settle() time.Duration {
	if g.cfg.Others {
		return 2 * maxAge
	}
	return drainPause // the only gateway has the new copy: for a request that was about to be counted
}

// spec returns the group that a key names or is a replica of.
func (g *Groups) spec(key holdfast.SessionKey) (Spec, bool) {
	for _, s := range g.cfg.Specs {
		if string(key) == s.Name || holdfast.IsReplicaKey(s.Name, key) {
			return s, true
		}
	}
	return Spec{}, false
}

// GroupOf returns the name of the group that a key names or is reserved for, "" if there
// is none.
func (g *Groups) GroupOf(key holdfast.SessionKey) string {
	s, _ := g.spec(key)
	return s.Name
}
