package jobnode

import (
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// The estimate of an image is the median of its own pulls, else of all pulls. Records without
// a pull of their own do not count.
func TestEstimate(t *testing.T) {
	record := func(image string, seconds int, p *spinup.Pull) spinup.Record {
		return spinup.Record{Image: image, Pull: p, Times: map[spinup.Phase]holdfast.Millis{
			spinup.Download: holdfast.Millis(time.Duration(seconds-1) * time.Second), spinup.Extract: holdfast.Millis(time.Second)}}
	}
	pulled := &spinup.Pull{}
	records := []spinup.Record{
		record("app", 2, pulled), record("app", 90, pulled), record("app", 4, pulled), record("db", 20, pulled), record("db", 30, pulled),
		record("app", 50, nil), record("app", 60, &spinup.Pull{Cached: true}), record("app", 70, &spinup.Pull{Joined: true}),
	}
	for _, c := range []struct {
		records []spinup.Record
		images  []string
		want    time.Duration
	}{
		{records, []string{"app"}, 4 * time.Second},
		{records, []string{"app", "db"}, 34 * time.Second},
		{records, []string{"new"}, 20 * time.Second},
		{nil, []string{"new"}, unknownPull},
		{records, nil, 0},
	} {
		if got := estimate(c.records, c.images); got != c.want {
			t.Errorf("%v: %v, want %v", c.images, got, c.want)
		}
	}
}
