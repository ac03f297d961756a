// Package rotation takes a node with slow containers out of rotation.
//
// A critical finding about the host makes the node degraded. The node's record says so,
// and new sessions are placed elsewhere, within the bounds of holdfast.OutOfRotation. The
// condition ends after a period without such a finding. If it is configured, a node that
// stays degraded also drains its sessions. Only one node of the fleet drains at a time,
// and only if it is already out of rotation. The share of unavailable nodes therefore
// stays within its configured bound.
package rotation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/platform/tasks"
)

// Values of Config.Drain.
const (
	DrainOff  = "off"
	DrainAuto = "auto"
)

// Config defines what may be done with a degraded node.
type Config struct {
	Drain      string        `yaml:"drain"`       // off or auto
	DrainAfter time.Duration `yaml:"drain_after"` // minimum duration of a critical finding
	// Recover is the period without a critical finding after which the node is healthy. A
	// host with findings now and then stays degraded.
	Recover  time.Duration `yaml:"recover_after"`
	MaxShare float64       `yaml:"max_share"` // of all nodes: share that may be degraded and out of rotation, or draining
}

// DefaultConfig returns a configuration that drains nothing.
func DefaultConfig() Config {
	return Config{Drain: DrainOff, DrainAfter: 15 * time.Minute, Recover: 5 * time.Minute, MaxShare: 0.34}
}

// Validate checks the values. The error begins with the key.
func (c Config) Validate() error {
	switch {
	case c.Drain != DrainOff && c.Drain != DrainAuto:
		return fmt.Errorf("drain: %q is neither %s nor %s", c.Drain, DrainOff, DrainAuto)
	case c.DrainAfter < time.Second || c.DrainAfter > 7*24*time.Hour:
		return fmt.Errorf("drain_after: %v must be from 1s to a week", c.DrainAfter)
	case c.Recover < time.Second || c.Recover > 7*24*time.Hour:
		return fmt.Errorf("recover_after: %v must be from 1s to a week", c.Recover)
	case !(c.MaxShare >= 0 && c.MaxShare <= 0.5):
		return fmt.Errorf("max_share: %v must be from 0 to 0.5", c.MaxShare)
	}
	return nil
}

// Node is this node. Its methods may be called from any goroutine.
type Node interface {
	// Fleet lists the current nodes of the store.
	Fleet(ctx context.Context) ([]holdfast.Node, error)
	// Changed requests that the node's record is written soon.
	Changed()
	// Refuses reports whether the node accepts no new sessions, for any reason.
	Refuses() bool
	// Turn acquires the fleet's turn to drain, if it is free. The turn ends with done, or
	// with this node's lease.
	Turn(ctx context.Context) (done func(context.Context) error, ok bool, err error)
	// Drain hands over all sessions. The node accepts no session until Return.
	Drain(ctx context.Context) error
	Return() error
}

// Intervals and limits of the rotation.
const (
	// checkEvery is the interval between two checks.
	checkEvery = time.Second
	// retryEvery is the interval between two attempts to drain, unless DrainAfter is
	// shorter.
	retryEvery = time.Minute
	// releaseLimit bounds the release of the turn. The end of the lease releases it, too.
	releaseLimit = 30 * time.Second
)

// Rotation is the rotation of one node. Run may be called once, the other methods from
// any goroutine.
type Rotation struct {
	cfg     Config
	id      holdfast.NodeID
	node    Node
	log     *slog.Logger
	onDrain func(err error) // called after each drain; may be nil

	mu    sync.Mutex
	state state
	sick  string // the current reason, "" if the host is healthy
}

// New returns a Rotation. It does nothing before Run. onDrain is called after each
// drain; it may be nil.
func New(cfg Config, id holdfast.NodeID, node Node, onDrain func(err error), log *slog.Logger) *Rotation {
	return &Rotation{cfg: cfg, id: id, node: node, onDrain: onDrain, log: log}
}

// Reason returns why a host with these findings is sick, "" if it is not: the title of
// the oldest critical finding about the host. A finding that only concerns one container
// does not count; otherwise any user with the right to start a container could take a
// host out of rotation.
func Reason(open []watch.Open) string {
	var worst *watch.Open
	for i := range open {
		o := &open[i]
		if o.Severity == rule.Critical && ofHost(o) && (worst == nil || o.Since.Before(worst.Since)) {
			worst = o
		}
	}
	if worst == nil {
		return ""
	}
	return worst.Rule + ": " + worst.Title
}

// ofHost reports whether a finding concerns more than one container.
func ofHost(o *watch.Open) bool {
	switch o.Rule {
	case "throttling", "own-limit", "limits-near":
		return false
	case "conntrack-full": // of a network namespace other than the host's
		return o.Culprit.Cgroup == "" && o.Culprit.Pid == 0
	}
	return true
}

// Found records the open findings. It does not block.
func (r *Rotation) Found(open []watch.Open) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sick = Reason(open)
}

// Degraded returns why the node is degraded, and since when. The reason is "" if it is
// not degraded.
func (r *Rotation) Degraded() (why string, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.why, r.state.since
}

// Run maintains the node's condition until ctx is done, which also ends a drain in
// progress.
func (r *Rotation) Run(ctx context.Context) error {
	return tasks.EveryTick(ctx, checkEvery, func() { r.step(ctx) })
}

func (r *Rotation) step(ctx context.Context) {
	refuses := r.node.Refuses()
	r.mu.Lock()
	before := r.state
	act := r.state.step(r.cfg, time.Now(), r.sick, refuses)
	now := r.state
	r.mu.Unlock()
	if now.why != before.why {
		r.logChange(before, now)
		r.node.Changed()
	}
	switch act {
	case drain:
		drained, err := r.drain(ctx)
		r.mu.Lock()
		r.state.drained = drained
		r.mu.Unlock()
		if r.onDrain != nil && (drained || err != nil) {
			r.onDrain(err)
		}
		if err != nil && ctx.Err() == nil {
			r.log.Error("doctor: draining this degraded node", "err", err)
		}
	case undrain:
		r.log.Info("doctor: this node has recovered and accepts sessions")
		if err := r.node.Return(); err != nil {
			r.log.Warn("doctor: this node has recovered, but accepts no sessions", "err", err)
		}
	}
}

func (r *Rotation) logChange(before, now state) {
	switch {
	case now.why == "":
		r.log.Info("doctor: this node is no longer degraded", "was", before.why, "lasted", time.Since(before.since).Round(time.Second))
	case before.why == "":
		r.log.Warn("doctor: this node is degraded: new sessions are placed elsewhere, within doctor.max_share", "why", now.why)
	default:
		r.log.Warn("doctor: this node is degraded for another reason", "why", now.why)
	}
}

// drain hands over the node's sessions if it is the node's turn. It reports whether it
// has done so, completely or not.
func (r *Rotation) drain(ctx context.Context) (drained bool, err error) {
	done, ok, err := r.node.Turn(ctx)
	if err != nil || !ok {
		return false, err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
		defer cancel()
		err = errors.Join(err, done(ending))
	}()
	all, err := r.node.Fleet(ctx)
	if err != nil {
		return false, err
	}
	if !holdfast.OutOfRotation(all, r.cfg.MaxShare)[r.id] {
		return false, nil // too many other nodes are out of rotation
	}
	why, since := r.Degraded()
	r.log.Warn("doctor: this node has been degraded for drain_after: draining its sessions", "why", why, "since", since)
	// Until the node's record says that it drains, the record says that the node is
	// degraded. Both count, so the next node need not wait for the change.
	err = r.node.Drain(ctx)
	r.node.Changed()
	return true, err
}
