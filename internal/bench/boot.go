package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/engine/docker"
	"holdfast/internal/lab"
	"holdfast/internal/lab/echoserver"
	"holdfast/internal/warmpool"
)

// BootOptions say how `holdfast bench boot` measures.
type BootOptions struct {
	N int // boots of each kind; 0 is 50
	// Claims are sessions that come to one pool of as many warm containers, Rate
	// of them a second; no claims are none, and a rate of 0 is 20.
	Claims int
	Rate   float64
	// Agent is the command of an agent: this program's own, with the
	// argument agent; --config FILE is added.
	Agent []string
	// Server is the command of a session's server on :8080 in an image made
	// of this program: testserver.
	Server   []string
	Progress io.Writer // a line now and then; nil is nowhere
}

// Check reports what cannot be; a zero that stands for a default cannot either.
func (o BootOptions) Check() error {
	switch {
	case o.N < 1:
		return fmt.Errorf("boots are %d, there has to be one at least", o.N)
	case o.Claims < 0 || o.Claims > warmpool.MaxSize:
		return fmt.Errorf("claims are %d, there have to be 0 to %d", o.Claims, warmpool.MaxSize)
	case o.Rate <= 0 || o.Rate > 1000:
		return fmt.Errorf("the rate is %v claims a second, it has to be over 0 and at most 1000", o.Rate)
	}
	return nil
}

// rowEngineBoot is the peer's row; those of ours are in bootModes.
const rowEngineBoot = "engine: create + start"

const (
	bootImage   = "bench-session:latest"
	bootPort    = 8080
	bootWarmups = 3 // of each kind, not counted
	bootLimit   = time.Minute
)

// bootMode is one of our ways to a session, by an agent of its own.
type bootMode struct {
	name     string // a word: the agent's and its keys'
	row      string
	template string // what its template has beside image and port, YAML
	networks int    // that its agent keeps ready
	warm     bool   // its containers are there before their sessions: it is not in the score
	// containerd: on that, and not on the peer's engine, whose own containerd has
	// the same version.
	containerd bool
}

// bootModes are our ways, in the order of the rows. All are on their engine's default
// bridge, as the peer is.
func bootModes() []bootMode {
	return []bootMode{
		{name: "bridge", row: "session, network made in the start", template: "network: bridge"},
		{name: "pooled", row: "session, network ready before", template: "network: pooled", networks: 4},
		{name: "warm", row: "session, container warm before", template: "network: bridge, warm: 4", warm: true},
		{name: "ctr", row: "containerd: session, network made in the start", template: "network: pooled", containerd: true},
		{name: "ctr-pooled", row: "containerd: session, network ready before", template: "network: pooled", networks: 4, containerd: true},
	}
}

// Boot measures, in turns, the engine's own create and start of a container,
// and whole sessions from the request at the gateway to the first byte of its
// answer: claim, create, start, readiness and proxy, by agents in processes
// of their own with embedded stores, one for each of our ways. All are the same
// container from the same image on the same bridge. Each turn begins when all
// agents have made ready what they keep ready, and removed what they have to: what
// a way does ahead of need is never done beside another's turn. Then come the Claims,
// to a pool that has a warm container for each. It works inside a lab only
// (lab.Reenter).
//
// Score is the engine's p50 ÷ that of our best way without warm containers.
func Boot(ctx context.Context, o BootOptions) (Result, error) {
	o.N, o.Rate = cmp.Or(o.N, 50), cmp.Or(o.Rate, 20)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	x, err := newBootBench(ctx, o, bootModes())
	return conduct(ctx, x, err)
}

// bootBench is one run of the experiment.
type bootBench struct {
	o      BootOptions
	dir    string
	lab    *lab.Engine
	engine engine.Engine
	other  *lab.Containerd // nil where no mode is on one
	agents []*bootAgent    // one for each mode
	image  lab.Image
	client *http.Client
	failed atomic.Int64
}

func newBootBench(ctx context.Context, o BootOptions, modes []bootMode) (*bootBench, error) {
	x := &bootBench{o: o, client: &http.Client{Timeout: bootLimit, Transport: &http.Transport{DisableKeepAlives: true}}}
	var err error
	if x.dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
		return x, err
	}
	if x.lab, err = lab.StartEngine(ctx, lab.Options{}); err != nil {
		return x, err
	}
	if x.image, err = lab.SelfImage(bootImage, o.Server...); err == nil {
		err = x.lab.Import(ctx, x.image)
	}
	if err != nil {
		return x, err
	}
	if x.engine, err = docker.Open(ctx, docker.Config{Host: x.lab.Host()}); err != nil {
		return x, err
	}
	if slices.ContainsFunc(modes, func(m bootMode) bool { return m.containerd }) {
		if x.other, err = lab.StartContainerd(ctx, lab.ContainerdOptions{}); err != nil {
			return x, err
		}
	}
	for _, m := range modes {
		a, err := x.startAgent(ctx, m)
		if a != nil {
			x.agents = append(x.agents, a)
		}
		if err != nil {
			return x, fmt.Errorf("the agent of %s: %w", m.name, err)
		}
	}
	return x, nil
}

func (x *bootBench) close() error {
	var errs []error
	for _, a := range x.agents {
		errs = append(errs, a.stop())
	}
	if x.engine != nil {
		errs = append(errs, x.engine.Close())
	}
	if x.lab != nil {
		errs = append(errs, x.lab.Stop())
	}
	if x.other != nil {
		errs = append(errs, x.other.Stop())
	}
	if x.dir != "" {
		errs = append(errs, os.RemoveAll(x.dir))
	}
	return errors.Join(errs...)
}

func (x *bootBench) run(ctx context.Context) (Result, error) {
	info, err := x.engine.Info(ctx)
	if err != nil {
		return Result{}, err
	}
	kinds := []func(context.Context, int) (time.Duration, error){x.engineBoot}
	rows := []string{rowEngineBoot}
	for _, a := range x.agents {
		kinds = append(kinds, func(ctx context.Context, i int) (time.Duration, error) { return x.turn(ctx, a, i) })
		rows = append(rows, a.mode.row)
	}
	took := make([][]float64, len(kinds))
	for i := range x.o.N + bootWarmups {
		if i%10 == 0 {
			fmt.Fprintf(x.o.Progress, "%d of %d boots of each kind\n", max(0, i-bootWarmups), x.o.N)
		}
		for n := range kinds {
			k := (i + n) % len(kinds) // which goes first changes from turn to turn
			if err := x.settle(ctx); err != nil {
				return Result{}, err
			}
			t, err := kinds[k](ctx, i)
			if err != nil {
				return Result{}, err
			}
			if i >= bootWarmups {
				took[k] = append(took[k], millis(t))
			}
		}
	}
	r := Result{Name: "boot", Machine: EngineMachine(info), Failed: int(x.failed.Load())}
	for k, name := range rows {
		r.Rows = append(r.Rows, NewRow(name, "ms", took[k]))
	}
	peer, ours := r.Rows[0], r.Rows[1:]
	best := math.Inf(1)
	for i, a := range x.agents {
		if !a.mode.warm {
			best = min(best, ours[i].P50)
		}
	}
	r.Score = peer.P50 / best
	for _, row := range ours {
		r.Notes = append(r.Notes, fmt.Sprintf("%s: its p50 is %.2f times, its p99 %.2f times the engine's own create + start", row.Name, row.P50/peer.P50, row.P99/peer.P99))
	}
	if x.o.Claims > 0 {
		row, err := x.claims(ctx)
		if err != nil {
			return Result{}, err
		}
		r.Rows, r.Failed = append(r.Rows, row), int(x.failed.Load())
	}
	return r, nil
}

// settle waits until every agent has ready what it keeps ready, and nothing left
// to remove.
func (x *bootBench) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	for _, a := range x.agents {
		if err := a.settle(ctx, x); err != nil {
			return fmt.Errorf("waiting for the pools of %s to be full: %w", a.mode.name, err)
		}
	}
	return nil
}

// engineBoot is what the engine takes for a container like a session's.
func (x *bootBench) engineBoot(ctx context.Context, i int) (time.Duration, error) {
	start := time.Now()
	id, err := x.engine.Create(ctx, engine.Spec{
		Name: fmt.Sprintf("peer-%d", i), Image: bootImage, Hostname: "peer",
		Env:     []string{"HOLDFAST_SESSION=peer", "HOLDFAST_EPOCH=1"},
		Restart: engine.RestartNo, Init: true, NoNewPrivileges: true,
	})
	if err == nil {
		err = x.engine.Start(ctx, id)
	}
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, x.engine.Remove(ctx, id)
}

// sessionBoot is what a client waits for: from its request to the first byte of
// the session's answer, which has to say whose it is.
func (x *bootBench) sessionBoot(ctx context.Context, a *bootAgent, i int) (time.Duration, error) {
	key := fmt.Sprintf("%s-%d", a.mode.name, i)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/s/%s/", a.gateway, key), nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	res, err := x.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	body := bufio.NewReader(res.Body)
	_, err = body.Peek(1)
	took := time.Since(start)
	var who echoserver.Reply
	if err == nil {
		err = json.NewDecoder(body).Decode(&who)
	}
	if err != nil || res.StatusCode != http.StatusOK || who.Session != key {
		x.failed.Add(1)
	}
	return took, nil
}

// turn is a session's boot, whose container is removed before the next.
func (x *bootBench) turn(ctx context.Context, a *bootAgent, i int) (time.Duration, error) {
	took, err := x.sessionBoot(ctx, a, i)
	if err != nil {
		return 0, err
	}
	list, err := a.sessions(ctx, x.client)
	if err != nil {
		return 0, err
	}
	for _, s := range list {
		if err := a.engine.Remove(ctx, s.ContainerID); err != nil {
			return 0, err
		}
	}
	return took, nil
}
