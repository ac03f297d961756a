package agent

import (
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/spinup"
)

// Only spin-ups that ended well and made and started a container count, and images' sizes do not.
func TestFiguresOfSpinups(t *testing.T) {
	took := func(pull, create, start time.Duration) spinup.Record {
		r := spinup.Record{Outcome: spinup.OK, Times: map[spinup.Phase]holdfast.Millis{spinup.Download: holdfast.Millis(pull)}}
		if create > 0 {
			r.Times[spinup.Create], r.Times[spinup.Start] = holdfast.Millis(create), holdfast.Millis(start)
		}
		return r
	}
	records := []spinup.Record{took(time.Hour, 0, 0)}
	for i := range 100 {
		records = append(records, took(time.Duration(i)*time.Minute, time.Duration(i+1)*time.Millisecond, time.Second))
	}
	records = append(records, took(0, 20*time.Second, time.Second))
	failed := took(0, time.Hour, time.Hour)
	failed.Outcome = spinup.Failed
	records = append(records, failed)
	f := figures(records, spinup.DefaultRules())
	if f.Count != 101 || f.Slow != 1 || f.P50 < 1.05 || f.P50 > 1.052 || f.P99 < 1.099 || f.P99 > 1.1 {
		t.Errorf("%+v", f)
	}
	if f := figures(nil, spinup.DefaultRules()); f != (ranking.Spinups{}) {
		t.Errorf("of none: %+v", f)
	}
}

// A record that says nothing new is not written.
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
