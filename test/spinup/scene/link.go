package scene

import (
	"math"
	"testing"

	"holdfast/internal/hosts/spinup"
	"holdfast/test/lab/registry"
)

// Link is a throttled connection to the registry, with an image whose pull takes about
// six seconds on it, in three layers of Third bytes.
type Link struct {
	Rate  float64 // MiB/s
	Third int64
	Slow  bool // slow by the published rule
}

// Links returns one link below and one above the published rule of 20 MiB/s.
func Links() []Link {
	return []Link{{15, 30 << 20, true}, {25, 48 << 20, false}}
}

// Check compares the record of a pull with the log of the proxy. If the host is slower
// than the link, the pull has to be judged by the speed of the host.
func (l Link) Check(t testing.TB, judged []spinup.Verdict, passed []registry.Passed, sizes map[string]int64) {
	t.Helper()
	seen := Throughput(passed, sizes)
	for _, v := range judged {
		if v.Phase != spinup.Download {
			continue
		}
		t.Logf("link of %v MiB/s, the proxy passed %.2f, measured %.2f", l.Rate, seen, v.Value)
		if math.Abs(v.Value-seen) > .15*seen {
			t.Errorf("measured %.2f MiB/s, the proxy passed %.2f", v.Value, seen)
		}
		want := v.Value < v.Limit
		if seen >= .93*l.Rate {
			want = l.Slow
		}
		if v.Slow != want {
			t.Errorf("slow is %v, measured %.2f MiB/s on a link of %v", v.Slow, v.Value, l.Rate)
		}
		return
	}
	t.Errorf("the download was not judged: %+v", judged)
}

// Throughput returns the MiB/s of layers of the given sizes, by the log of the proxy.
func Throughput(passed []registry.Passed, sizes map[string]int64) float64 {
	var all Span
	var n int64
	for _, p := range passed {
		if sizes[p.Blob] == 0 {
			continue
		}
		if all.From.IsZero() || p.First.Before(all.From) {
			all.From = p.First
		}
		if p.Last.After(all.To) {
			all.To = p.Last
		}
		n += p.Bytes
	}
	return float64(n) / (1 << 20) / all.To.Sub(all.From).Seconds()
}
