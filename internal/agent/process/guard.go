package process

import (
	"context"
	"log/slog"
	"time"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/frozen"
	"holdfast/internal/sessions/guardian"
)

const (
	// armAgain is the time until a plan is armed again that no guardian has accepted.
	armAgain = 5 * time.Second
	// never is a deadline that no process lives to see.
	never = 100 * 365 * 24 * time.Hour
)

// KeepArmed keeps a plan armed until ctx is done. If the guardian exits, the next one gets
// the plan. At the end a plan with a deadline is disarmed. lost is the consequence of having none, for the log.
func KeepArmed(ctx context.Context, g *guardian.Guardian, plan guardian.Plan, lost string, log *slog.Logger) error {
	for ctx.Err() == nil {
		armed, err := g.Arm(plan)
		again, gone := time.After(armAgain), (<-chan struct{})(nil)
		if err == nil {
			again, gone = nil, armed.Done()
		} else if ctx.Err() == nil {
			log.Error("if this agent is killed, "+lost+" (trying again)", "err", err)
		}
		select {
		case <-gone:
		case <-again:
		case <-ctx.Done():
		}
		if err == nil && ctx.Err() != nil && plan.Deadline != 0 {
			_ = armed.Disarm() // a guardian that is gone has undone it
		}
	}
	return nil
}

// ThawPlan thaws the containers that this process has frozen when it is gone.
func ThawPlan(notes frozen.Notes) guardian.Plan {
	return guardian.Plan{Name: "freezing unused containers", Deadline: boottime.Now().Add(never), Undo: []guardian.Undo{{Kind: guardian.Thaw, Dir: notes.Dir()}}}
}
