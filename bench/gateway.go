package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast"
)

// GatewayOptions configures `holdfast bench gateway`. The zero value of a field
// selects its default.
type GatewayOptions struct {
	Conns    int           // connections at once; 100
	Duration time.Duration // of one measurement of one way and work; 2 s, at least 0.1 s
	Rounds   int           // measurements of each; 5
	Only     []string      // works, by name; all of GatewayWorks

	// Child is the command line that calls GatewayChild. The role and its arguments
	// are appended. Child is required.
	Child []string
}

func (o *GatewayOptions) defaults() error {
	if o.Conns == 0 {
		o.Conns = 100
	}
	if o.Duration == 0 {
		o.Duration = 2 * time.Second
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	return o.Check()
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o GatewayOptions) Check() error {
	switch {
	case o.Conns < 1 || o.Conns > 10000:
		return fmt.Errorf("connections is %d, it must be 1 to 10000", o.Conns)
	case o.Duration < 100*time.Millisecond || o.Rounds < 1:
		return fmt.Errorf("duration is %v and rounds is %d, they must be at least 100ms and 1", o.Duration, o.Rounds)
	case len(o.Child) == 0:
		return errors.New("no command line for child processes")
	}
	for _, name := range o.Only {
		if !slices.Contains(GatewayWorks(), name) {
			return fmt.Errorf("there is no work %q; the works are %s", name, strings.Join(GatewayWorks(), ", "))
		}
	}
	return nil
}

// The ways to the server, in the order of the first round.
const (
	wayDirect = iota
	wayNginx
	wayOurs
	ways
)

func wayName(way int) string { return [ways]string{"no proxy", "nginx", "holdfast"}[way] }

// Gateway measures WebSocket echo with one message in flight per connection and HTTP
// requests of 1 KiB: directly, through nginx, and through the product's own gateway, in
// turns on the same machine. Servers, nginx, gateway and h2load, which makes the HTTP
// requests, are separate processes; the calling process makes the WebSockets' load. Over
// TLS there is no direct way. Score is the gateway's throughput ÷ nginx's, by medians of
// all rounds, for the worst work. Failed counts messages and requests whose answer is
// missing or wrong.
func Gateway(ctx context.Context, o GatewayOptions) (Result, error) {
	res := Result{Name: "gateway", Machine: ThisMachine("")}
	if err := o.defaults(); err != nil {
		return res, err
	}
	stand, err := startGatewayStand(ctx, o)
	defer stand.stop()
	if err != nil {
		return res, err
	}
	works := slices.DeleteFunc(gatewayWorks(), func(w gatewayWork) bool {
		return len(o.Only) > 0 && !slices.Contains(o.Only, w.name)
	})
	tables := make([]gatewayTable, len(works))
	for round := range o.Rounds {
		for i, w := range works {
			for k := range ways {
				way := (k + round) % ways // the order rotates each round
				to := stand.url(w, way)
				if to.address == "" {
					continue
				}
				run, err := w.measure(ctx, to, o)
				if err != nil {
					return res, fmt.Errorf("%s, %s: %w", wayName(way), w.about, err)
				}
				res.Failed += run.broken
				tables[i].add(way, run)
			}
		}
	}
	for i, w := range works {
		t := tables[i]
		res.Rows = append(res.Rows, t.rows(w)...)
		ratio := t.throughput(wayOurs) / t.throughput(wayNginx)
		if i == 0 || ratio < res.Score {
			res.Score = ratio
		}
		res.Notes = append(res.Notes, fmt.Sprintf("%s: throughput %.2f × nginx's (rounds %s), p50 %.2f ×, p99 %.2f ×", w.about, ratio, t.spread(),
			t.latencies(wayOurs).P50/t.latencies(wayNginx).P50, t.latencies(wayOurs).P99/t.latencies(wayNginx).P99))
	}
	return res, nil
}

// gatewayTable collects the rounds of one work.
type gatewayTable struct {
	rates   [ways][]float64 // messages or requests/s, one per round
	latency [ways][]float64 // ms, one per message or request
}

func (t *gatewayTable) add(way int, r echoRun) {
	t.rates[way] = append(t.rates[way], float64(len(r.latency))/r.took.Seconds())
	for _, d := range r.latency {
		t.latency[way] = append(t.latency[way], float64(d)/float64(time.Millisecond))
	}
}

func (t *gatewayTable) throughput(way int) float64 { return NewRow("", "", t.rates[way]).P50 }
func (t *gatewayTable) latencies(way int) Row      { return NewRow("", "", t.latency[way]) }

// spread returns the least and the highest ratio of a round.
func (t *gatewayTable) spread() string {
	var ratios []float64
	for i, r := range t.rates[wayOurs] {
		ratios = append(ratios, r/t.rates[wayNginx][i])
	}
	return fmt.Sprintf("%.2f to %.2f", slices.Min(ratios), slices.Max(ratios))
}

func (t *gatewayTable) rows(w gatewayWork) []Row {
	var rows []Row
	for way := range ways {
		if len(t.rates[way]) > 0 {
			rows = append(rows, NewRow(wayName(way)+", "+w.about, w.unit, t.rates[way]))
		}
	}
	for way := range ways {
		if len(t.rates[way]) > 0 {
			rows = append(rows, NewRow(wayName(way)+", "+w.about, "ms", t.latency[way]))
		}
	}
	return rows
}

// gatewayStand has the processes of the bench.
type gatewayStand struct {
	dir   string
	stops []func()
	echo  gatewayServer
	pages gatewayServer
}

// gatewayServer has the ways to a server.
type gatewayServer struct{ plain, tls [ways]echoURL }

// url returns where a work goes on a way. It is zero if the work has no such way.
func (s *gatewayStand) url(w gatewayWork, way int) echoURL {
	to := s.echo
	if w.pages {
		to = s.pages
	}
	if w.tls {
		return to.tls[way]
	}
	return to.plain[way]
}

// stop ends the processes. It may be called after an error.
func (s *gatewayStand) stop() {
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
	os.RemoveAll(s.dir)
}

// startGatewayStand starts the processes. The caller calls stop after an error, too.
func startGatewayStand(ctx context.Context, o GatewayOptions) (*gatewayStand, error) {
	s := &gatewayStand{}
	var err error
	if s.dir, err = os.MkdirTemp("", "holdfast-bench-gateway-"); err != nil {
		return s, err
	}
	cert, key := filepath.Join(s.dir, "cert.pem"), filepath.Join(s.dir, "key.pem")
	if err := writeCertificate(cert, key); err != nil {
		return s, err
	}
	echo, err := s.child(ctx, o, roleEcho)
	if err != nil {
		return s, err
	}
	pages, err := s.nginx(ctx, pagesConfig, nil)
	if err != nil {
		return s, err
	}
	if s.echo, err = s.front(ctx, o, echo, cert, key); err != nil {
		return s, err
	}
	s.pages, err = s.front(ctx, o, pages[0], cert, key)
	return s, err
}

// front starts nginx and gateways in front of a server.
func (s *gatewayStand) front(ctx context.Context, o GatewayOptions, server, cert, key string) (to gatewayServer, err error) {
	nginx, err := s.nginx(ctx, proxyConfig, map[string]string{"Upstream": server, "Cert": cert, "Key": key})
	if err != nil {
		return to, err
	}
	plain, err := s.child(ctx, o, roleGateway, server)
	if err != nil {
		return to, err
	}
	secure, err := s.child(ctx, o, roleSecure, server, cert, key)
	if err != nil {
		return to, err
	}
	const path = "/s/bench/"
	to.plain = [ways]echoURL{wayDirect: {server, "/", false}, wayNginx: {nginx[0], path, false}, wayOurs: {plain, path, false}}
	to.tls = [ways]echoURL{wayNginx: {nginx[1], path, true}, wayOurs: {secure, path, true}}
	return to, nil
}

func (s *gatewayStand) child(ctx context.Context, o GatewayOptions, role ...string) (string, error) {
	address, end, err := startChild(ctx, o.Child, role...)
	if err == nil {
		s.stops = append(s.stops, end)
	}
	return address, err
}

// nginx starts an nginx and returns the addresses of its two ports.
func (s *gatewayStand) nginx(ctx context.Context, config string, values map[string]string) ([2]string, error) {
	addresses, end, err := startNginx(ctx, config, values)
	if err != nil {
		return addresses, holdfast.WithHint(err, "make bench-tools installs nginx, the peer of this bench")
	}
	s.stops = append(s.stops, end)
	return addresses, nil
}
