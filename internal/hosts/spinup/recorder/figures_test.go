package recorder

import (
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/spinup"
)

// Figures count spin-ups without an error that created and started a container. The
// time of the pull does not count.
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
