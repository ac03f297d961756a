package apitest

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// FailingTrial is the trial in which an upgrade fails.
const FailingTrial = 7 * time.Second

// Upgrade implements api.AgentService: LastUpgrade then returns one state after
// the other.
func (b *Backend) Upgrade(_ context.Context, trial time.Duration) (api.Upgrade, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return api.Upgrade{}, b.fault
	}
	if len(b.upgrades) > 1 {
		return api.Upgrade{}, holdfast.WithHint(fmt.Errorf("another upgrade of this agent is under way: %w", holdfast.ErrBusy), "wait until it is over")
	}
	u := api.Upgrade{
		ID: "UPGRADE", State: api.UpgradeUnderWay, From: api.Build{Version: "v1.0.0", PID: 41}, To: api.Build{Version: "v1.1.0", PID: 42},
		Steps: []holdfast.Step{{Name: "start", Took: holdfast.Millis(20 * time.Millisecond)}},
	}
	served, over := u, u
	served.State, served.Held, served.Sessions = api.UpgradeOnTrial, holdfast.Millis(700*time.Millisecond), 3
	over = served
	over.State = api.UpgradeDone
	if trial == FailingTrial {
		over.State, over.Error, over.Advice = api.UpgradeFailed, "in its trial: the next agent has ended: exit status 4", "look at the log"
	}
	b.upgrades = []api.Upgrade{u, served, over}
	return u, nil
}

// LastUpgrade implements api.AgentService.
func (b *Backend) LastUpgrade() api.Upgrade {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.upgrades) == 0 {
		return api.Upgrade{State: api.UpgradeNone}
	}
	u := b.upgrades[0]
	if len(b.upgrades) > 1 {
		b.upgrades = b.upgrades[1:]
	}
	return u
}
