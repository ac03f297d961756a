package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast"
)

// GatewayOptions configures `holdfast bench gateway`. The zero value of a field
// selects its default.
type GatewayOptions struct {
	Conns    int           // WebSockets at once; 100
	Duration time.Duration // of one measurement of one way and size; 2 s
	Rounds   int           // measurements of each; 5
	Sizes    []int         // payload bytes, 1 to 60000; 64 and 16384

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
	if len(o.Sizes) == 0 {
		o.Sizes = []int{64, 16384}
	}
	return o.Check()
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o GatewayOptions) Check() error {
	switch {
	case o.Conns < 1 || o.Conns > 10000:
		return fmt.Errorf("connections is %d, it must be 1 to 10000", o.Conns)
	case o.Duration <= 0 || o.Rounds < 1:
		return fmt.Errorf("duration is %v and rounds is %d, both must be over 0", o.Duration, o.Rounds)
	case len(o.Sizes) == 0 || slices.Min(o.Sizes) < 1 || slices.Max(o.Sizes) > maxPayload:
		return fmt.Errorf("sizes are %v, each must be 1 to %d", o.Sizes, maxPayload)
	case len(o.Child) == 0:
		return errors.New("no command line for child processes")
	}
	return nil
}

// The ways to the echo server, in the order of the first round.
const (
	wayDirect = iota
	wayNginx
	wayOurs
	ways
)

func wayName(way int) string { return [ways]string{"no proxy", "nginx", "holdfast"}[way] }

// Gateway measures WebSocket echo with one message in flight per connection:
// directly, through nginx, and through the product's own gateway, in turns on
// the same machine. Echo server, nginx and gateway are separate processes; the
// calling process makes the load. Score is the gateway's throughput ÷ nginx's, by
// medians of all rounds, for the worst size. Failed counts messages whose echo is
// missing or differs.
func Gateway(ctx context.Context, o GatewayOptions) (Result, error) {
	res := Result{Name: "gateway", Machine: ThisMachine("")}
	if err := o.defaults(); err != nil {
		return res, err
	}
	urls, stop, err := startWays(ctx, o)
	defer stop()
	if err != nil {
		return res, err
	}
	tables := make([]gatewayTable, len(o.Sizes))
	for round := range o.Rounds {
		for i, size := range o.Sizes {
			for k := range ways {
				way := (k + round) % ways // the order rotates each round
				run, err := echoLoad(ctx, urls[way], o.Conns, size, o.Duration)
				if err != nil {
					return res, fmt.Errorf("%s, %d B: %w", wayName(way), size, err)
				}
				res.Failed += run.broken
				tables[i].add(way, run)
			}
		}
	}
	for i, size := range o.Sizes {
		res.Rows = append(res.Rows, tables[i].rows(size)...)
		ratio := tables[i].throughput(wayOurs) / tables[i].throughput(wayNginx)
		if i == 0 || ratio < res.Score {
			res.Score = ratio
		}
		res.Notes = append(res.Notes, fmt.Sprintf("%d B: throughput %.2f × nginx's, p99 %.2f × nginx's", size, ratio,
			tables[i].p99(wayOurs)/tables[i].p99(wayNginx)))
	}
	return res, nil
}

// gatewayTable collects the rounds of one size.
type gatewayTable struct {
	rates   [ways][]float64 // msg/s, one per round
	latency [ways][]float64 // ms, one per message
}

func (t *gatewayTable) add(way int, r echoRun) {
	t.rates[way] = append(t.rates[way], float64(len(r.latency))/r.took.Seconds())
	for _, d := range r.latency {
		t.latency[way] = append(t.latency[way], float64(d)/float64(time.Millisecond))
	}
}

func (t *gatewayTable) throughput(way int) float64 { return NewRow("", "", t.rates[way]).P50 }
func (t *gatewayTable) p99(way int) float64        { return NewRow("", "", t.latency[way]).P99 }

func (t *gatewayTable) rows(size int) []Row {
	var rows []Row
	for way := range ways {
		rows = append(rows, NewRow(fmt.Sprintf("%s, %d B", wayName(way), size), "msg/s", t.rates[way]))
	}
	for way := range ways {
		rows = append(rows, NewRow(fmt.Sprintf("%s, %d B", wayName(way), size), "ms", t.latency[way]))
	}
	return rows
}

// startWays starts the processes and returns the address and path of each way.
// stop ends the processes. The caller must call it after an error, too.
func startWays(ctx context.Context, o GatewayOptions) (urls [ways]echoURL, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range slices.Backward(stops) {
			s()
		}
	}
	echo, end, err := startChild(ctx, o.Child, roleEcho)
	if err != nil {
		return urls, stop, err
	}
	stops = append(stops, end)
	urls[wayDirect] = echoURL{echo, "/"}

	nginx, end, err := startNginx(ctx, echo)
	if err != nil {
		return urls, stop, holdfast.WithHint(err, "make bench-tools installs nginx, the peer of this bench")
	}
	stops = append(stops, end)
	urls[wayNginx] = echoURL{nginx, "/s/bench/"}

	ours, end, err := startChild(ctx, o.Child, roleGateway, echo)
	if err != nil {
		return urls, stop, err
	}
	stops = append(stops, end)
	urls[wayOurs] = echoURL{ours, "/s/bench/"}
	return urls, stop, nil
}
