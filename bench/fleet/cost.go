package fleet

import (
	"fmt"
	"time"

	"holdfast"
)

// Cost is what an act cost clients and sessions. A client counts for the last act that had
// begun when it was answered, or gave up.
type Cost struct {
	Act       Act             `json:"act"`
	Runs      int             `json:"runs"`
	Connected int             `json:"connected"`  // clients
	Failed    int             `json:"failed"`     // clients that could not connect
	Longest   holdfast.Millis `json:"longest_ms"` // longest wait of a client that connected
	Sessions  int             `json:"sessions"`   // that the act hit
	Ended     int             `json:"ended"`      // those of them that did not stay as they were
}

func (c Cost) String() string {
	return fmt.Sprintf("cost of %s, %d times: %d clients connected, the longest wait %.1f s, %d failed; %d of %d sessions ended",
		c.Act, c.Runs, c.Connected, time.Duration(c.Longest).Seconds(), c.Failed, c.Ended, c.Sessions)
}

// costs returns the costs of the acts that happened.
func costs(m measured, all []handover, runs map[Act]int) []Cost {
	by := map[Act]*Cost{}
	for act, n := range runs {
		by[act] = &Cost{Act: act, Runs: n}
	}
	for _, a := range m.load.past {
		c := by[m.during(a.end)]
		switch {
		case c == nil: // before the first act
		case a.reason != "":
			c.Failed++
		default:
			c.Connected++
			c.Longest = max(c.Longest, holdfast.Millis(a.end-a.begin))
		}
	}
	for _, h := range all {
		by[h.act].Sessions++
		if !h.kept {
			by[h.act].Ended++
		}
	}
	out := []Cost{}
	for _, act := range allActs(true) {
		if c := by[act]; c != nil {
			out = append(out, *c)
		}
	}
	return out
}
