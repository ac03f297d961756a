package holdfast

import (
	"fmt"
	"time"
)

// Timing is the set of deadlines that prevents two containers for one session. A node
// renews its lease every Renew. If no renewal has succeeded for Fence, counted from
// the sending of the last good one, the node kills its containers. If it has not done
// so a quarter of Renew later, the deadman kills them. Killing takes KillBudget at
// most. Another node may claim the sessions only after TTL.
//
// The node measures these times on CLOCK_BOOTTIME, the store measures TTL on its own
// clock. Two clocks can differ by a thousandth, because NTP lets each be off by 500
// ppm (adjtimex(2)). A hundredth of TTL is reserved for that.
type Timing struct {
	Renew      time.Duration `json:"renew"`
	Fence      time.Duration `json:"fence"`
	KillBudget time.Duration `json:"kill_budget"`
	TTL        time.Duration `json:"ttl"` // of the node's lease; whole seconds, as etcd counts
}

// DefaultTiming allows a takeover after about ten seconds.
func DefaultTiming() Timing {
	return Timing{Renew: time.Second, Fence: 5 * time.Second, KillBudget: 3 * time.Second, TTL: 10 * time.Second}
}

// Deadline is the time from the sending of the last good renewal until the deadman
// kills the containers.
func (t Timing) Deadline() time.Duration { return t.Fence + t.Renew/4 }

// Validate checks the invariants: 0 < Renew < Fence, 0 < KillBudget,
// Fence + Renew/4 + KillBudget < TTL less a hundredth, and TTL in whole seconds.
func (t Timing) Validate() error {
	busy, free := t.Deadline()+t.KillBudget, t.TTL-t.TTL/100
	switch {
	case t.Renew <= 0:
		return fmt.Errorf("timing: renew is %v, it has to be over 0", t.Renew)
	case t.Renew >= t.Fence:
		return fmt.Errorf("timing: renew (%v) has to be shorter than fence (%v)", t.Renew, t.Fence)
	case t.KillBudget <= 0:
		return fmt.Errorf("timing: kill_budget is %v, it has to be over 0", t.KillBudget)
	case busy >= free:
		return fmt.Errorf("timing: fence + renew/4 + kill_budget (%v) has to be shorter than 99 %% of ttl (%v)", busy, free)
	case t.TTL%time.Second != 0:
		return fmt.Errorf("timing: ttl (%v) has to be whole seconds", t.TTL)
	}
	return nil
}
