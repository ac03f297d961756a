package holdfast

import (
	"fmt"
	"time"
)

// Timing is the set of deadlines that keeps a session from living twice. A node
// renews its lease every Renew; if no renewal has succeeded Fence after the
// sending of the last good one, it kills its containers, and a quarter of a
// Renew later the deadman does, if it has not; that takes KillBudget at the
// most. Only after TTL may another node claim what it owned.
//
// All of it is measured on CLOCK_BOOTTIME of the node, and TTL on the clock of
// the store. Two clocks can run apart by a thousandth: NTP lets each be off by
// 500 ppm (adjtimex(2)). A hundredth of TTL is kept for that.
type Timing struct {
	Renew      time.Duration `json:"renew"`
	Fence      time.Duration `json:"fence"`
	KillBudget time.Duration `json:"kill_budget"`
	TTL        time.Duration `json:"ttl"` // of the node's lease; whole seconds, as etcd counts
}

// DefaultTiming takes over in about ten seconds.
func DefaultTiming() Timing {
	return Timing{Renew: time.Second, Fence: 5 * time.Second, KillBudget: 3 * time.Second, TTL: 10 * time.Second}
}

// Deadline is how long after the sending of the last good renewal the deadman
// acts.
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
