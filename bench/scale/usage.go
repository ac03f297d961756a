package scale

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/procfs"

	"holdfast/bench"
)

// usage is the resource use of the processes, and the state of the cluster, at one moment.
type usage struct {
	cluster clusterState
	cpu     time.Duration // of all members
	ownCPU  time.Duration // of this process: all nodes
	memory  int64         // bytes, of the largest member
	ownRSS  int64         // bytes, of this process
	written int64         // bytes that the members have written to disk
	events  int64         // events of watches
}

// use reads the current usage.
func (s *simulation) use(ctx context.Context) (usage, error) {
	var u usage
	var err error
	if u.cluster, err = s.etcd.state(ctx); err != nil {
		return u, err
	}
	if u.ownCPU, u.ownRSS, err = bench.ProcessUsage(os.Getpid()); err != nil {
		return u, err
	}
	for _, m := range s.etcd.Members {
		pid := m.PID()
		cpu, rss, err := bench.ProcessUsage(pid)
		if err != nil {
			return u, err
		}
		p, err := procfs.NewProc(pid)
		if err != nil {
			return u, fmt.Errorf("look at an etcd member: %w", err)
		}
		io, err := p.IO()
		if err != nil {
			return u, fmt.Errorf("look at what an etcd member wrote: %w", err)
		}
		u.cpu += cpu
		u.memory = max(u.memory, rss)
		u.written += int64(io.WriteBytes)
	}
	u.events = s.meter.events.Load()
	for _, c := range s.counts {
		u.events += c.events.Load()
	}
	return u, nil
}

// between returns the figures of a part of the run: the difference of two readings.
func between(part string, a, b usage) []bench.Row {
	seconds := b.cluster.at.Sub(a.cluster.at).Seconds()
	one := func(what, unit string, v float64) bench.Row { return bench.NewRow(what+", "+part, unit, []float64{v}) }
	return []bench.Row{
		one("etcd writes", "1/s", float64(b.cluster.revision-a.cluster.revision)/seconds),
		one("etcd raft entries", "1/s", float64(b.cluster.index-a.cluster.index)/seconds),
		one("etcd to disk, three members", "MiB/s", float64(b.written-a.written)/(1<<20)/seconds),
		one("etcd CPU, three members", "cores", (b.cpu-a.cpu).Seconds()/seconds),
		one("etcd memory, largest member", "MiB", float64(b.memory)/(1<<20)),
		one("etcd database", "MiB", float64(b.cluster.size)/(1<<20)),
		one("nodes' CPU, all together", "cores", (b.ownCPU-a.ownCPU).Seconds()/seconds),
		one("events delivered", "1/s", float64(b.events-a.events)/seconds),
	}
}
