package scale

import (
	"fmt"
	"time"

	"holdfast/bench"
)

// takeover is the maximum time of a takeover, in addition to the lease's TTL and the boot.
const takeover = 2 * time.Second

// result computes the result of the run.
func (s *simulation) result() bench.Result {
	r := bench.Result{Name: "scale", Machine: bench.ThisMachine(""), Failed: int(s.failed.Load())}
	for i, part := range []string{partFill, partSteady, partLoss} {
		r.Rows = append(r.Rows, s.meter.rows(part)...)
		r.Rows = append(r.Rows, between(part, s.usage[2*i], s.usage[2*i+1])...)
	}
	d, mib := s.directory, func(bytes int64) []float64 { return []float64{float64(bytes) / (1 << 20)} }
	r.Rows = append(r.Rows,
		bench.NewRow("directory: memory at rest", "MiB", mib(d.After-d.Before)),
		bench.NewRow("directory: memory after its first list", "MiB", mib(d.Peak-d.Before)),
		bench.NewRow("directory: first list", "ms", []float64{float64(d.Loaded) / 1e6}))
	allowed := float64(s.o.Timing.TTL+takeover+s.o.Boot) / 1e6
	if worst := s.meter.row(readyAgain, partLoss).P99; worst > 0 {
		r.Score = allowed / worst
	}
	r.Notes = append([]string{
		fmt.Sprintf("%d nodes, %d sessions, %d nodes with %d sessions vanished; %d directories, %d more watches",
			s.o.Nodes, s.o.Sessions, s.o.lostNodes(), s.lost, s.o.Directories, s.o.Watchers),
		fmt.Sprintf("every lost session ready again %.1f s after the loss; lease %v, a container's boot %v",
			s.took.Seconds(), s.o.Timing.TTL, s.o.Boot),
		fmt.Sprintf("the score is lease + %v + boot against the p99 of %q", takeover, readyAgain),
		fmt.Sprintf("a directory of %d records was measured in a process of its own", d.Records),
	}, s.meter.failures()...)
	if n := s.meter.fenced.Load(); n > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d times a node could not renew in time, and ended what it had", n))
	}
	return r
}
