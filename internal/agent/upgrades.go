package agent

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/linux/boottime"
)

// upgrades is what this process knows of the agent's upgrades: the one that it
// came by, and those that it was asked for. Any goroutine may use it.
type upgrades struct {
	version string
	log     *slog.Logger

	mu       sync.Mutex
	last     api.Upgrade
	underway bool             // one has begun and is not over
	next     *handoff.Next    // that is to take over when this agent has ended
	trial    time.Duration    // of it
	shutAt   boottime.Instant // when the doors were shut for it
	stepAt   boottime.Instant // when the last step ended
	done     int
	failed   int
}

// word is what one agent tells the next of an upgrade.
type word struct {
	Upgrade api.Upgrade      `json:"upgrade"`
	ShutAt  boottime.Instant `json:"shut_at"` // both are on one host
	StepAt  boottime.Instant `json:"step_at"`
}

// newUpgrades goes on with what the agent before this one says.
func newUpgrades(version string, note []byte, log *slog.Logger) (*upgrades, error) {
	u := &upgrades{version: version, log: log, last: api.Upgrade{State: api.UpgradeNone}}
	if note == nil {
		return u, nil
	}
	var w word
	if err := json.Unmarshal(note, &w); err != nil {
		return nil, fmt.Errorf("what the agent before this one says: %w", err)
	}
	u.last, u.shutAt, u.stepAt, u.underway = w.Upgrade, w.ShutAt, w.StepAt, true
	return u, nil
}

// note is word as it goes over.
func (u *upgrades) note() ([]byte, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return json.Marshal(word{u.last, u.shutAt, u.stepAt})
}

// begin takes note of a new one; holdfast.ErrBusy where one is under way.
func (u *upgrades) begin() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.underway {
		return holdfast.WithHint(fmt.Errorf("another upgrade of this agent is under way, its state is %s: %w", u.last.State, holdfast.ErrBusy),
			"wait until it is over")
	}
	u.underway = true
	u.last = api.Upgrade{ID: rand.Text(), State: api.UpgradeUnderWay, From: api.Build{Version: u.version, PID: os.Getpid()}}
	u.shutAt, u.stepAt = 0, boottime.Now()
	return nil
}

// prepared takes note of the next agent, which waits for its turn.
func (u *upgrades) prepared(next *handoff.Next) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last.To = api.Build{Version: next.Hello().Version, PID: next.PID()}
	u.stepLocked("start")
}

// step takes note of the end of a step.
func (u *upgrades) step(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stepLocked(name)
}

func (u *upgrades) stepLocked(name string) {
	now := boottime.Now()
	u.last.Steps = append(u.last.Steps, holdfast.Step{Name: name, Took: holdfast.Millis(now - u.stepAt)})
	u.stepAt = now
}

// commit says that next takes over when this agent has ended.
func (u *upgrades) commit(next *handoff.Next, trial time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.next, u.trial = next, trial
}

// take returns what commit has set, once; nil for nothing.
func (u *upgrades) take() (*handoff.Next, time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	next := u.next
	u.next = nil
	return next, u.trial
}

// goingBack reports whether this process's agent is to serve again after an
// upgrade that failed, and does not yet.
func (u *upgrades) goingBack() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.underway && u.last.Error != ""
}

// shut takes note that from now on who connects has to wait.
func (u *upgrades) shut() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.shutAt = boottime.Now()
}

// fail says that this process's agent serves on, and why.
func (u *upgrades) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.log.Error("the upgrade failed; this agent goes on", "err", err)
	u.last.Error, u.last.Advice = err.Error(), holdfast.HintOf(err)
	u.failed++
	if u.shutAt == 0 { // it has served all the time
		u.last.State, u.underway = api.UpgradeFailed, false
	}
}

// serving takes note that an agent of this process serves, with so many sessions
// that it has from another.
func (u *upgrades) serving(sessions int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.underway {
		return
	}
	u.stepLocked("take over")
	u.last.Held, u.last.Sessions = holdfast.Millis(boottime.Now()-u.shutAt), sessions
	if u.last.Error != "" {
		u.last.State, u.underway = api.UpgradeFailed, false
		return
	}
	u.last.State = api.UpgradeOnTrial
}

// over says that the agent before this process's is out of the way.
func (u *upgrades) over() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stepLocked("trial")
	u.last.State, u.underway = api.UpgradeDone, false
	u.done++
	u.log.Info("took over from another agent", "from", u.last.From.Version, "pid", u.last.From.PID, "held", u.last.Held, "sessions", u.last.Sessions)
}

// report is how it goes.
func (u *upgrades) report() api.Upgrade {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.last
	r.Steps = slices.Clone(r.Steps)
	return r
}

// register has the figures shown by an agent.
func (u *upgrades) register(reg prometheus.Registerer) {
	v := api.BuildVersion()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "holdfast_build_info", Help: "Always 1; the labels say which build this agent is.",
		ConstLabels: prometheus.Labels{"version": u.version, "commit": v.Commit, "go": v.Go},
	})
	build.Set(1)
	reg.MustRegister(build, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_agent_upgrade_held_seconds", Help: "How long connects waited, at most, at the upgrade that this agent came by or went on from; 0 without one.",
	}, func() float64 { return time.Duration(u.report().Held).Seconds() }))
	for outcome, n := range map[string]*int{"done": &u.done, "failed": &u.failed} {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "holdfast_agent_upgrades_total", Help: "Upgrades that this process came by (done: at most one), or was asked for in vain (failed).",
			ConstLabels: prometheus.Labels{"outcome": outcome},
		}, func() float64 {
			u.mu.Lock()
			defer u.mu.Unlock()
			return float64(*n)
		}))
	}
}
