package spinup

import (
	"bufio"
	"cmp"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/lab"
	"holdfast/internal/lab/registry"
	"holdfast/test/spinup/scene"
)

// BenchmarkAgainstTruth says how far wall times are from what the proxy saw of
// the download and the engine's debug log tells of the extraction, as medians
// over its rounds:
//
//	go test ./test/spinup -run '^$' -bench Truth -benchtime 10x
func BenchmarkAgainstTruth(b *testing.B) {
	for _, c := range []struct {
		name string
		rate float64
	}{{"8MiB/s", 8 << 20}, {"40MiB/s", 40 << 20}, {"unbounded", 0}} {
		b.Run(c.name, func(b *testing.B) {
			s := open(b, lab.Options{Args: []string{"--debug"}})
			var download, extract []compared
			for i := range b.N {
				name := "test/wall:1"
				sizes, err := s.Push(b.Context(), name, scene.Layers(uint64(time.Now().UnixNano())+uint64(10*i), 12<<20, 8<<20, 4<<20, 1<<20))
				if err != nil {
					b.Fatal(err)
				}
				s.Proxy.Passed()
				s.Proxy.Set(registry.Faults{Rate: c.rate})
				stream := scene.Pull(b.Context(), s.Engine, s.Proxy.Host()+"/"+name, engine.PullOptions{}, nil)
				p, err := reduce(b, s, stream, false)
				if err != nil {
					b.Fatal(err)
				}
				download = append(download, compared{time.Duration(p.Download.Wall), covered(passing(s.Proxy.Passed(), sizes))})
				extract = append(extract, compared{time.Duration(p.Extract.Wall), covered(applied(b, s.Private.LogFile(), stream.Begun))})
			}
			report(b, "download", download)
			report(b, "extract", extract)
			b.ReportMetric(0, "ns/op")
		})
	}
}

// compared is a wall time as measured and as it was.
type compared struct{ ours, truth time.Duration }

func report(b *testing.B, name string, list []compared) {
	var off, share []float64
	for _, c := range list {
		if c.truth == 0 {
			b.Fatalf("nothing is known of a %s", name)
		}
		off = append(off, (c.ours-c.truth).Seconds()*1000)
		share = append(share, 100*(c.ours.Seconds()/c.truth.Seconds()-1))
		b.Logf("%s: %v, in truth %v", name, c.ours.Round(time.Millisecond), c.truth.Round(time.Millisecond))
	}
	slices.Sort(off)
	slices.Sort(share)
	b.ReportMetric(off[len(off)/2], name+"-ms-off")
	b.ReportMetric(share[len(share)/2], name+"-%-off")
}

type span struct{ from, to time.Time }

// covered is the time that at least one of the spans covers.
func covered(spans []span) time.Duration {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from.UnixNano(), b.from.UnixNano()) })
	var all time.Duration
	var end time.Time
	for _, s := range spans {
		if s.from.Before(end) {
			s.from = end
		}
		if s.to.After(s.from) {
			all += s.to.Sub(s.from)
			end = s.to
		}
	}
	return all
}

func passing(passed []registry.Passed, sizes map[string]int64) []span {
	var out []span
	for _, p := range passed {
		if sizes[p.Blob] > 0 {
			out = append(out, span{p.First, p.Last})
		}
	}
	return out
}

// What the daemon logs before and after it extracts a layer: the driver
// (overlay2 ApplyDiff) and the layer store (applyTar).
var logged = regexp.MustCompile(`time="([^"]+)" level=debug msg="(Applying tar in|Applied tar)`)

// applied are the extractions in the daemon's debug log since begun.
func applied(b *testing.B, path string, begun time.Time) []span {
	b.Helper()
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var out []span
	var from time.Time
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := logged.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			b.Fatal(err)
		}
		switch {
		case at.Before(begun):
		case m[2] == "Applying tar in":
			from = at
		default:
			out = append(out, span{from, at})
		}
	}
	return out
}
