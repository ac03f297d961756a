package handoff

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
	"holdfast/internal/control/api"
	"holdfast/internal/platform/linux/boottime"
)

// Upgrades records the upgrades of this process: the one that started it, and those
// that were requested from it. Any goroutine may use it.
type Upgrades struct {
	version string
	log     *slog.Logger

	mu        sync.Mutex
	last      api.Upgrade
	underway  bool             // an upgrade has begun and is not over
	next      *Next            // takes over when this agent has ended
	trial     time.Duration    // of next
	stoppedAt boottime.Instant // when the listeners stopped accepting for it
	stepAt    boottime.Instant // when the last step ended
	done      int
	failed    int
}

// upgradeNote is the state of an upgrade, which one agent passes to the next. Both are on
// one host, so the instants are comparable.
type upgradeNote struct {
	Upgrade   api.Upgrade      `json:"upgrade"`
	StoppedAt boottime.Instant `json:"shut_at"`
	StepAt    boottime.Instant `json:"step_at"`
}

// NewUpgrades continues the upgrade in the note of the agent before this one; nil is
// none.
func NewUpgrades(version string, note []byte, log *slog.Logger) (*Upgrades, error) {
	u := &Upgrades{version: version, log: log, last: api.Upgrade{State: api.UpgradeNone}}
	if note == nil {
		return u, nil
	}
	var w upgradeNote
	if err := json.Unmarshal(note, &w); err != nil {
		return nil, fmt.Errorf("note of the previous agent: %w", err)
	}
	u.last, u.stoppedAt, u.stepAt, u.underway = w.Upgrade, w.StoppedAt, w.StepAt, true
	return u, nil
}

// note returns the note for the next agent, as JSON.
func (u *Upgrades) note() ([]byte, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return json.Marshal(upgradeNote{u.last, u.stoppedAt, u.stepAt})
}

// begin records a new upgrade. It returns holdfast.ErrBusy while another one is under
// way.
func (u *Upgrades) begin() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.underway {
		return holdfast.WithHint(fmt.Errorf("another upgrade of this agent is under way, its state is %s: %w", u.last.State, holdfast.ErrBusy),
			"wait until it is over")
	}
	u.underway = true
	u.last = api.Upgrade{ID: rand.Text(), State: api.UpgradeUnderWay, From: api.Build{Version: u.version, PID: os.Getpid()}}
	u.stoppedAt, u.stepAt = 0, boottime.Now()
	return nil
}

// prepared records the next agent, which waits for its turn.
func (u *Upgrades) prepared(next *Next) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last.To = api.Build{Version: next.Hello().Version, PID: next.PID()}
	u.stepLocked("start")
}

// Step records the end of a step.
func (u *Upgrades) Step(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stepLocked(name)
}

func (u *Upgrades) stepLocked(name string) {
	now := boottime.Now()
	u.last.Steps = append(u.last.Steps, holdfast.Step{Name: name, Took: holdfast.Millis(now - u.stepAt)})
	u.stepAt = now
}

// commit makes next take over when this agent has ended.
func (u *Upgrades) commit(next *Next, trial time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.next, u.trial = next, trial
}

// take returns what commit has set, once; nil for none.
func (u *Upgrades) take() (*Next, time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	next := u.next
	u.next = nil
	return next, u.trial
}

// rollingBack reports whether an upgrade has failed and the agent of this process does
// not serve again yet.
func (u *Upgrades) rollingBack() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.underway && u.last.Error != ""
}

// Stopped records that from now on new connections wait.
func (u *Upgrades) Stopped() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stoppedAt = boottime.Now()
}

// fail records that the upgrade failed and the agent of this process continues to serve.
func (u *Upgrades) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.log.Error("the upgrade failed; this agent continues to serve", "err", err)
	u.last.Error, u.last.Advice = err.Error(), holdfast.HintOf(err)
	u.failed++
	if u.stoppedAt == 0 { // the listeners never stopped
		u.last.State, u.underway = api.UpgradeFailed, false
	}
}

// Serving records that an agent of this process serves, with that many sessions of
// the agent before it.
func (u *Upgrades) Serving(sessions int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.underway {
		return
	}
	u.stepLocked("take over")
	u.last.Held, u.last.Sessions = holdfast.Millis(boottime.Now()-u.stoppedAt), sessions
	if u.last.Error != "" {
		u.last.State, u.underway = api.UpgradeFailed, false
		return
	}
	u.last.State = api.UpgradeOnTrial
}

// TookOver records that this agent serves that many open connections of the agent before it.
func (u *Upgrades) TookOver(connections int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last.Connections += connections
}

// TrialOver records that the agent before this one has ended.
func (u *Upgrades) TrialOver() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stepLocked("trial")
	u.last.State, u.underway = api.UpgradeDone, false
	u.done++
	u.log.Info("took over from another agent", "from", u.last.From.Version, "pid", u.last.From.PID, "held", u.last.Held, "sessions", u.last.Sessions, "connections", u.last.Connections)
}

// Report returns the state of the last upgrade.
func (u *Upgrades) Report() api.Upgrade {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.last
	r.Steps = slices.Clone(r.Steps)
	return r
}

// Register registers the metrics with the registry of an agent.
func (u *Upgrades) Register(reg prometheus.Registerer) {
	v := api.BuildVersion()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "holdfast_build_info", Help: "Always 1. The labels name the build of this agent.",
		ConstLabels: prometheus.Labels{"version": u.version, "commit": v.Commit, "go": v.Go},
	})
	build.Set(1)
	reg.MustRegister(build, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_agent_upgrade_held_seconds", Help: "Longest time that new connections waited during the last upgrade of this process, in seconds; 0 without one.",
	}, func() float64 { return time.Duration(u.Report().Held).Seconds() }))
	for outcome, n := range map[string]*int{"done": &u.done, "failed": &u.failed} {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "holdfast_agent_upgrades_total", Help: "Upgrades by outcome: done, the one that started this process; failed, those that were requested from it.",
			ConstLabels: prometheus.Labels{"outcome": outcome},
		}, func() float64 {
			u.mu.Lock()
			defer u.mu.Unlock()
			return float64(*n)
		}))
	}
}
