// Package rotation takes a node on which containers are slow out of rotation.
//
// A critical finding about the host makes the node degraded: it says so in its
// record, and new sessions are placed elsewhere, as far as holdfast.OutOfRotation
// lets them. That is over when there was no such finding for a while. Where it is
// configured, a node that stays degraded hands its sessions over, too: one node of
// the fleet at a time, and only one that is out of rotation already, so that never
// more than the set share of nodes is away.
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
)

// The words for Config.Drain.
const (
	DrainOff  = "off"
	DrainAuto = "auto"
)

// Config is what may be done with a degraded node.
type Config struct {
	Drain      string        `yaml:"drain"`       // off or auto
	DrainAfter time.Duration `yaml:"drain_after"` // that a critical finding has lasted
	// Recover is how long there must be no critical finding: a host that is sick
	// now and then is not well in between.
	Recover  time.Duration `yaml:"recover_after"`
	MaxShare float64       `yaml:"max_share"` // of all nodes, that may be degraded and out of rotation, or draining
}

// DefaultConfig drains nothing.
func DefaultConfig() Config {
	return Config{Drain: DrainOff, DrainAfter: 15 * time.Minute, Recover: 5 * time.Minute, MaxShare: 0.34}
}

// Validate checks the values. The error begins with the key.
func (c Config) Validate() error {
	switch {
	case c.Drain != DrainOff && c.Drain != DrainAuto:
		return fmt.Errorf("drain: %q is neither %s nor %s", c.Drain, DrainOff, DrainAuto)
	case c.DrainAfter < time.Second || c.DrainAfter > 7*24*time.Hour:
		return fmt.Errorf("drain_after: %v has to be from 1s to a week", c.DrainAfter)
	case c.Recover < time.Second || c.Recover > 7*24*time.Hour:
		return fmt.Errorf("recover_after: %v has to be from 1s to a week", c.Recover)
	case !(c.MaxShare >= 0 && c.MaxShare <= 0.5):
		return fmt.Errorf("max_share: %v has to be from 0 to 0.5", c.MaxShare)
	}
	return nil
}

// Node is this node, as it is taken out of rotation. Its methods may be called from
// any goroutine.
type Node interface {
	// Fleet lists the nodes as the store has them now.
	Fleet(ctx context.Context) ([]holdfast.Node, error)
	// Changed has the node's record written soon.
	Changed()
	// Refuses reports whether the node takes no new session, whoever wants that.
	Refuses() bool
	// Turn takes the fleet's turn to drain, if nobody has it. The turn ends with
	// done, or with this node's lease.
	Turn(ctx context.Context) (done func(context.Context) error, ok bool, err error)
	// Drain hands over everything; the node takes no session until Return.
	Drain(ctx context.Context) error
	Return() error
}

// Times of the rotation.
const (
	// look is between two looks at what is to be done.
	look = time.Second
	// again is between two tries to drain, where DrainAfter is not less.
	again = time.Minute
	// giveBack is how long it may take to give the turn back; the lease's end does
	// it, too.
	giveBack = 30 * time.Second
)

// Rotation is one node's. Run may be called once, the other methods from any
// goroutine.
type Rotation struct {
	cfg  Config
	id   holdfast.NodeID
	node Node
	log  *slog.Logger
	told func(drained bool, err error) // of each drain; may be nil

	mu    sync.Mutex
	state state
	sick  string // why, now; "" for well
}

// New returns a Rotation that does nothing yet. told hears how each drain ended; nil
// for nobody.
func New(cfg Config, id holdfast.NodeID, node Node, told func(drained bool, err error), log *slog.Logger) *Rotation {
	return &Rotation{cfg: cfg, id: id, node: node, told: told, log: log}
}

// Reason is why a host with these findings is sick, "" where it is not: the title
// of the critical finding about the host that has lasted for longest. What a
// container does to itself alone is none: else whoever may start a container could
// take a host out of rotation.
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

// ofHost reports whether a finding is about more than one container.
func ofHost(o *watch.Open) bool {
	switch o.Rule {
	case "throttling", "own-limit", "limits-near":
		return false
	case "conntrack-full": // of a namespace that is not the host's
		return o.Culprit.Cgroup == "" && o.Culprit.Pid == 0
	}
	return true
}

// Found takes note of the findings that are open now. It does not block.
func (r *Rotation) Found(open []watch.Open) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sick = Reason(open)
}

// Degraded is why the node is degraded and since when; "" where it is not.
func (r *Rotation) Degraded() (why string, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.why, r.state.since
}

// Run looks after the node's condition until ctx is done. A drain under way is
// ended with it.
func (r *Rotation) Run(ctx context.Context) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		r.step(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Rotation) step(ctx context.Context) {
	refuses := r.node.Refuses()
	r.mu.Lock()
	before := r.state
	act := r.state.step(r.cfg, time.Now(), r.sick, refuses)
	now := r.state
	r.mu.Unlock()
	if now.why != before.why {
		r.tell(before, now)
		r.node.Changed()
	}
	switch act {
	case drain:
		drained, err := r.drain(ctx)
		r.mu.Lock()
		r.state.drained = drained
		r.mu.Unlock()
		if r.told != nil && (drained || err != nil) {
			r.told(drained, err)
		}
		if err != nil && ctx.Err() == nil {
			r.log.Error("doctor: draining this degraded node", "err", err)
		}
	case comeBack:
		r.log.Info("doctor: this node is well again and takes sessions")
		if err := r.node.Return(); err != nil {
			r.log.Warn("doctor: this node is well again, and takes no sessions all the same", "err", err)
		}
	}
}

func (r *Rotation) tell(before, now state) {
	switch {
	case now.why == "":
		r.log.Info("doctor: this node is not degraded any more", "was", before.why, "lasted", time.Since(before.since).Round(time.Second))
	case before.why == "":
		r.log.Warn("doctor: this node is degraded: new sessions are placed elsewhere, as far as doctor.max_share goes", "why", now.why)
	default:
		r.log.Warn("doctor: this node is degraded, now for another reason", "why", now.why)
	}
}

// drain hands over what the node has, if it is its turn. It reports whether it has
// done so, completely or not.
func (r *Rotation) drain(ctx context.Context) (drained bool, err error) {
	done, ok, err := r.node.Turn(ctx)
	if err != nil || !ok {
		return false, err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
		defer cancel()
		err = errors.Join(err, done(ending))
	}()
	all, err := r.node.Fleet(ctx)
	if err != nil {
		return false, err
	}
	if !holdfast.OutOfRotation(all, r.cfg.MaxShare)[r.id] {
		return false, nil // too many others are away
	}
	why, since := r.Degraded()
	r.log.Warn("doctor: this node has been degraded for long: its sessions are handed over", "why", why, "since", since)
	// Until its record says that it drains it says that the node is degraded, which
	// counts as well: the next one need not wait for that.
	err = r.node.Drain(ctx)
	r.node.Changed()
	return true, err
}
