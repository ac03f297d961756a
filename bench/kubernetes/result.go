package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"holdfast/bench"
	"holdfast/internal/hosts/kube"
)

// reading is the resource use at one moment.
type reading struct {
	at                         time.Time
	server, etcd, own, real    time.Duration // CPU
	serverRSS, etcdRSS, ownRSS int64         // bytes
	realRSS                    int64
	read, sent, dials          int64
}

// window is the time between two readings.
type window struct{ from, to reading }

func (w window) seconds() float64 { return w.to.at.Sub(w.from.at).Seconds() }

// window reads, waits, and reads again.
func (s *simulation) window(ctx context.Context, d time.Duration) (w window, err error) {
	if w.from, err = s.look(); err != nil {
		return w, err
	}
	if err := kube.Sleep(ctx, d); err != nil {
		return w, err
	}
	w.to, err = s.look()
	return w, err
}

func (s *simulation) look() (reading, error) {
	c := s.cluster
	r := reading{at: time.Now(), read: c.read.Load(), sent: c.sent.Load(), dials: c.dials.Load()}
	if err := s.alive(); err != nil {
		return r, err
	}
	debug.FreeOSMemory()
	var err error
	use := func(pid int, cpu *time.Duration, rss *int64) {
		if err == nil && pid > 0 {
			*cpu, *rss, err = bench.ProcessUsage(pid)
		}
	}
	use(c.server.Pid(), &r.server, &r.serverRSS)
	use(c.etcd.Members[0].PID(), &r.etcd, &r.etcdRSS)
	use(os.Getpid(), &r.own, &r.ownRSS)
	if s.real != nil {
		use(s.real.Process.Pid, &r.real, &r.realRSS)
	}
	return r, err
}

// Details are the requests that the API server logged while the cluster was at rest.
type Details struct {
	Agents  int            `json:"agents"`
	Seconds float64        `json:"seconds"`
	Kinds   map[string]int `json:"requests"` // by verb and resource, of all simulated agents
	Most    int            `json:"most"`     // requests of the agent with most requests
	Lists   []string       `json:"lists"`    // URIs of lists and watches by agents
	Errors  int            `json:"errors"`   // requests that the API server refused
	Record  int            `json:"record_bytes"`
}

// result computes the result of the run.
func (s *simulation) result() (bench.Result, error) {
	w := s.steady
	t, err := s.cluster.count(w.from.at, w.to.at)
	if err != nil {
		return bench.Result{}, err
	}
	record, err := json.Marshal(s.record)
	if err != nil {
		return bench.Result{}, err
	}
	n, seconds := float64(s.o.Nodes), w.seconds()
	d := Details{Agents: s.o.Nodes, Seconds: seconds, Kinds: t.kinds, Lists: t.lists, Errors: t.bad, Record: len(record)}
	if d.Lists == nil {
		d.Lists = []string{}
	}
	for _, k := range t.nodes {
		d.Most = max(d.Most, k)
	}
	// Shorter leases mean more requests in the same time.
	rate := float64(t.all()) / seconds / n * s.o.renew().Seconds() / usual.Seconds()
	r := bench.Result{Name: "kubernetes", Machine: bench.ThisMachine(""), Details: d, Scale: fmt.Sprintf("%v requests/s per agent over what was counted", Allowed)}
	if rate > 0 {
		r.Score = Allowed / rate
	}
	if rate >= Allowed {
		r.Failed++
	}
	r.Failed += len(t.lists) + t.bad
	r.Rows = s.rows(t, rate)
	for _, kind := range slices.Sorted(maps.Keys(t.kinds)) {
		r.Rows = append(r.Rows, one("requests: "+kind, "1/s", float64(t.kinds[kind])/seconds))
	}
	r.Notes = []string{
		fmt.Sprintf("%d agents in one process, each with its own connection and token; counted in the API server's audit log over %.0f s at rest", s.o.Nodes, seconds),
		fmt.Sprintf("lists and watches by agents: %d; requests refused: %d; most requests of one agent: %d", len(t.lists), t.bad, d.Most),
	}
	if s.real != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("the real agent made %d requests meanwhile; its record has %d bytes, and the simulated ones say the same", t.real, len(record)))
	}
	return r, nil
}

func one(name, unit string, v float64) bench.Row { return bench.NewRow(name, unit, []float64{v}) }

func (s *simulation) rows(t tally, rate float64) []bench.Row {
	w, n, seconds := s.steady, float64(s.o.Nodes), s.steady.seconds()
	cores := func(d time.Duration, of window) float64 { return d.Seconds() / of.seconds() }
	const share = "% of a core"
	mib := func(b int64) float64 { return float64(b) / (1 << 20) }
	rows := []bench.Row{
		one("requests per agent", "1/1000 s", 1000*rate),
		one("requests of all agents", "1/s", float64(t.all())/seconds),
		one("received per agent, with TLS", "B/s", float64(w.to.read-w.from.read)/seconds/n),
		one("sent per agent, with TLS", "B/s", float64(w.to.sent-w.from.sent)/seconds/n),
		one("connections opened", "1/s", float64(w.to.dials-w.from.dials)/seconds),
		one("API server CPU", share, 100*cores(w.to.server-w.from.server, w)),
		one("API server CPU, without agents", share, 100*cores(s.idle.to.server-s.idle.from.server, s.idle)),
		one("API server memory", "MiB", mib(w.to.serverRSS)),
		one("API server memory, without agents", "MiB", mib(s.idle.to.serverRSS)),
		one("etcd CPU", share, 100*cores(w.to.etcd-w.from.etcd, w)),
		one("etcd CPU, without agents", share, 100*cores(s.idle.to.etcd-s.idle.from.etcd, s.idle)),
		one("etcd memory", "MiB", mib(w.to.etcdRSS)),
		one("simulated agent, memory", "KiB", float64(w.to.ownRSS-s.ownRSS)/1024/n),
		one("simulated agent, CPU", "us/s", 1e6*cores(w.to.own-w.from.own, w)/n),
	}
	if s.real != nil {
		rows = append(rows,
			one("real agent, memory", "MiB", mib(w.to.realRSS)),
			one("real agent, CPU", share, 100*cores(w.to.real-w.from.real, w)),
			one("real agent, requests", "1/1000 s", 1000*float64(t.real)/seconds))
	}
	return rows
}
