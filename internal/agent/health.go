package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/runtimes"
)

const (
	healthEvery   = 5 * time.Second
	wholeEvery    = 30 * time.Second // see health.ask
	healthTimeout = 10 * time.Second // an engine under load is slow, not unhealthy
	probeTimeout  = 5 * time.Second  // of /readyz, whose clients wait for seconds
)

// health checks whether this node can run new sessions.
type health struct {
	engine    engine.Engine
	asking    singleflight.Group // of the engine
	whole     time.Time          // when ask last asked for the whole engine with success; only ask uses it
	works     *runtimes.Checker
	log       *slog.Logger
	netFailed bool // the last upkeep of the containers' network failed

	mu      sync.Mutex
	trouble string
}

// Answers returns nil if the engine answers in time. All callers share one request, which ends
// within healthTimeout, so that probes of a slow engine do not add to its load.
func (h *health) Answers(ctx context.Context, within time.Duration) error {
	asked := h.asking.DoChan("", func() (any, error) {
		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTimeout)
		defer cancel()
		return nil, h.ask(shared)
	})
	end := time.NewTimer(within)
	defer end.Stop()
	select {
	case r := <-asked:
		if !errors.Is(r.Err, context.DeadlineExceeded) {
			return r.Err
		}
	case <-end.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return holdfast.WithHint(fmt.Errorf("%w: no answer within %v", holdfast.ErrEngine, within),
		"the engine runs and is busy or stuck: its log and `docker info` show more. Sessions that run are served")
}

// ask returns nil if the engine answers. Once in wholeEvery, and after an error, it asks for
// the description of the engine: only that request fails if Docker answers and its containerd
// does not. Docker starts two programs for it. Asked every healthEvery, Docker and containerd took
// as much CPU time as an agent with 50 sessions at rest. One goroutine at a time calls ask.
func (h *health) ask(ctx context.Context) error {
	if time.Since(h.whole) < wholeEvery {
		err := h.engine.Ping(ctx)
		if err != nil {
			h.whole = time.Time{}
		}
		return err
	}
	_, err := h.engine.Info(ctx)
	if err == nil {
		h.whole = time.Now()
	}
	return err
}

// Run checks the engine periodically until ctx is done.
func (h *health) Run(ctx context.Context) error {
	return tasks.EveryTick(ctx, healthEvery, func() { h.check(ctx) })
}

func (h *health) check(ctx context.Context) {
	err := h.Answers(ctx, healthTimeout)
	if ctx.Err() != nil {
		return
	}
	trouble := ""
	if err != nil {
		trouble = fmt.Sprintf("its engine does not answer: %v", err)
	} else if err := h.checkNet(); err != nil {
		trouble = fmt.Sprintf("the NAT of its containers cannot be maintained: %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trouble = trouble
}

// checkNet returns the error of the last upkeep of the containers' network, if the
// engine has a network of its own. It logs changes.
func (h *health) checkNet() error {
	n, ok := h.engine.(ownNet)
	if !ok {
		return nil
	}
	_, err := n.Upkeep()
	switch {
	case err != nil && !h.netFailed:
		h.log.Error("the NAT of containers on this host cannot be maintained (trying again every ten seconds)", "err", err)
	case err == nil && h.netFailed:
		h.log.Info("the NAT of containers on this host is maintained again")
	}
	h.netFailed = err != nil
	return err
}

// Trouble returns the reason why the node cannot run new sessions, "" if it can.
func (h *health) Trouble() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.works.Trouble(); err != nil && h.trouble == "" {
		return err.Error()
	}
	return h.trouble
}

// ownNet is an engine whose containers are on a network that this program creates.
type ownNet interface {
	Net() vethnet.Config
	Upkeep() (failures int, last error)
}

// guardNet makes the guardian remove the containers' network and its NAT when this
// agent has exited, no other agent follows, and no container is left.
func (a *Agent) guardNet(p *tasks.Stack, g *guardian.Guardian) {
	if n, ok := a.engine.(ownNet); ok {
		plan := guardian.Plan{Name: "the containers' network", Undo: []guardian.Undo{{Kind: guardian.Leave, Nets: []vethnet.Config{n.Net()}}}}
		p.Start("the guard of the containers' network", func(ctx context.Context) error {
			return process.KeepArmed(ctx, g, plan, "the containers' network stays", a.log)
		})
	}
}

// upkeepMetric counts failed upkeeps of the containers' network.
func upkeepMetric(e engine.Engine) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "holdfast_network_upkeep_failures_total",
		Help: "Failed attempts to maintain Holdfast's bridge and its NAT that sessions are on.",
	}, func() float64 {
		n, ok := e.(ownNet)
		if !ok {
			return 0
		}
		failures, _ := n.Upkeep()
		return float64(failures)
	})
}
