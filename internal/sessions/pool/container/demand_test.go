package container

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDemand(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	d := demand{since: begin}
	d.made(2 * time.Second)
	if n := d.want(20, at(time.Minute)); n != 20 {
		t.Errorf("at first %d are wanted", n)
	}
	if n := d.want(20, at(2*time.Hour)); n != 1 {
		t.Errorf("without demand %d are wanted", n)
	}
	for range 7 { // in the 40 s that making 20 takes
		d.claim(at(2 * time.Hour))
	}
	d.claim(at(2*time.Hour + 40*time.Second))
	d.claim(at(2*time.Hour + 90*time.Second))
	if n := d.want(20, at(2*time.Hour+2*time.Minute)); n != 8 {
		t.Errorf("%d are wanted of a burst of 8", n)
	}
	if n := d.want(5, at(2*time.Hour+2*time.Minute)); n != 8 && n != 5 {
		t.Errorf("%d are wanted of 5 at most", n)
	}
	if n := d.want(20, at(3*time.Hour+time.Minute)); n != 1 {
		t.Errorf("an hour after the burst %d are wanted", n)
	}
}

// TestDemandIsTheLargestBurst compares the demand with a simple count.
func TestDemandIsTheLargestBurst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Unix(1_000_000, 0)
		most := rapid.IntRange(1, 40).Draw(t, "most")
		d := demand{since: begin, took: time.Duration(rapid.IntRange(1, 3000).Draw(t, "took")) * time.Millisecond}
		span := max(time.Duration(most)*d.took, leastSpan)
		now := begin
		for _, gap := range rapid.SliceOfN(rapid.IntRange(0, 20_000), 0, 60).Draw(t, "gaps") {
			now = now.Add(time.Duration(gap) * time.Millisecond)
			d.claim(now)
		}
		now = now.Add(2*demandAge - time.Duration(rapid.IntRange(0, 7200).Draw(t, "later"))*time.Second)
		want := 0
		for i, first := range d.claims {
			n := 0
			for _, x := range d.claims[i:] {
				if now.Sub(first) <= demandAge && x.Sub(first) <= span {
					n++
				}
			}
			want = max(want, n)
		}
		want = min(max(want, 1), most)
		if now.Sub(begin) < demandAge {
			want = most
		}
		if got := d.want(most, now); got != want {
			t.Fatalf("%d, want %d", got, want)
		}
	})
}
