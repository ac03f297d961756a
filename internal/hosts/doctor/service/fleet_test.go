package service

import (
	"testing"

	"holdfast/internal/hosts/doctor/ranking"
)

// A record without a changed figure is not written.
func TestRecordsAlike(t *testing.T) {
	of := func(dying, uptime float64) ranking.Record {
		return ranking.Record{Facts: map[string]float64{"memcg.dying": dying, "host.uptime": uptime}, Spinups: ranking.Spinups{Count: 7}}
	}
	was := of(100, 1000)
	more := of(100, 1000)
	more.Facts["x"] = 1
	sick, spun := of(100, 1000), of(100, 1000)
	sick.Degraded, spun.Spinups.Count = "slow", 8
	for name, c := range map[string]struct {
		now  ranking.Record
		want bool
	}{
		"the same": {of(100, 1000), true}, "a little": {of(105, 1090), true}, "much": {of(150, 1000), false},
		"from nothing": {of(100, 0), false}, "one more fact": {more, false}, "degraded": {sick, false}, "a spin-up": {spun, false},
	} {
		if got := alike(was, c.now); got != c.want {
			t.Errorf("%s: alike %v", name, got)
		}
	}
}
