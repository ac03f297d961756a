package protect

import (
	"testing"
	"time"
)

func TestWaits(t *testing.T) {
	var w Waits
	if q := w.Quantiles(time.Second); q != nil {
		t.Errorf("without a connection: %+v", q)
	}
	for i := range 1000 {
		w.Add(time.Duration(i+1)*time.Millisecond, 1)
	}
	q := w.Quantiles(time.Second)
	for _, c := range []struct {
		name      string
		got, want time.Duration
	}{{"p50", q.P50, 500 * time.Millisecond}, {"p90", q.P90, 900 * time.Millisecond}, {"p99", q.P99, 990 * time.Millisecond}} {
		if c.got < c.want || c.got > c.want*106/100 || c.got > time.Second {
			t.Errorf("%s is %v, want %v and up to 5 %% more", c.name, c.got, c.want)
		}
	}
	w = Waits{}
	w.Add(0, 9)
	w.Add(100*time.Hour, 1)
	if q := w.Quantiles(100 * time.Hour); q.P50 > firstWait || q.P99 < time.Minute {
		t.Errorf("the shortest and the longest: %+v", q)
	}
}
