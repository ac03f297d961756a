package holdfast

import (
	"fmt"
	"time"
)

// Timing is the set of deadlines that keeps a session from living twice. A node
// renews its lease every Renew; if no renewal has succeeded Fence after the
// sending of the last good one, it must kill its containers, for which it has
// KillBudget; only after TTL may another node claim what it owned.
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

// Validate checks the invariants: 0 < Renew < Fence, 0 < KillBudget,
// Fence + Renew/4 + KillBudget < TTL, and TTL in whole seconds.
func (t Timing) Validate() error {
	switch {
	case t.Renew <= 0:
		return fmt.Errorf("timing: renew is %v, it has to be over 0", t.Renew)
	case t.Renew >= t.Fence:
		return fmt.Errorf("timing: renew (%v) has to be shorter than fence (%v)", t.Renew, t.Fence)
	case t.KillBudget <= 0:
		return fmt.Errorf("timing: kill_budget is %v, it has to be over 0", t.KillBudget)
	case t.Fence+t.Renew/4+t.KillBudget >= t.TTL: // the fence is looked at every quarter of a renewal
		return fmt.Errorf("timing: fence + renew/4 + kill_budget (%v) has to be shorter than ttl (%v)", t.Fence+t.Renew/4+t.KillBudget, t.TTL)
	case t.TTL%time.Second != 0:
		return fmt.Errorf("timing: ttl (%v) has to be whole seconds", t.TTL)
	}
	return nil
}
