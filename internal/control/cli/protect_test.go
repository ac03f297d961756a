package cli

import (
	"testing"
	"time"

	"holdfast/internal/hosts/protect"
)

// A drain as long as the hold is refused: the hold would end before the command begins.
func TestProtectDrainIsUnderTimeout(t *testing.T) {
	for _, c := range []struct {
		drain   time.Duration
		overlap bool
		ok      bool
	}{
		{4 * time.Second, false, true},
		{5 * time.Second, false, false},
		{10 * time.Minute, false, false},
		{10 * time.Minute, true, false},
	} {
		p := protectFlags{ports: []int{80}, backend: string(protect.Auto), timeout: 5 * time.Second, drain: c.drain, overlap: c.overlap, keep: keepFlags{"none", time.Second}, udp: udpFlags{"none", time.Second}}
		if err := p.validate([]string{"true"}); (err == nil) != c.ok {
			t.Errorf("--drain %v, --overlap %v: %v", c.drain, c.overlap, err)
		}
	}
}
