package spinup

import (
	"slices"
	"testing"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/test/lab"
	"holdfast/test/lab/registry"
	"holdfast/test/spinup/scene"
)

// BenchmarkAgainstTruth compares measured times with the proxy's times of the download and with
// the engine's debug log of the extraction, as medians over its rounds:
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
				download = append(download, compared{time.Duration(p.Download.Wall), scene.Covered(scene.Passing(s.Proxy.Passed(), sizes))})
				applied, err := scene.Applied(s.Private.LogFile(), stream.Begun)
				if err != nil {
					b.Fatal(err)
				}
				extract = append(extract, compared{time.Duration(p.Extract.Wall), scene.Covered(applied)})
			}
			report(b, "download", download)
			report(b, "extract", extract)
			b.ReportMetric(0, "ns/op")
		})
	}
}

// compared is a measured time and the true time.
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
