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

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/sessions/pool/container"
	"holdfast/test/lab"
	"holdfast/test/lab/echoserver"
)

// BootOptions say how `holdfast bench boot` measures.
type BootOptions struct {
	N int // boots of each kind; 0 is 50
	// Claims are sessions that come to one pool of as many warm containers, Rate
	// of them a second; no claims are none, and a rate of 0 is 20.
	Claims int
	Rate   float64
	// Burst are sessions that are asked for at once, BurstRounds times of an agent
	// with Warm containers and as often of one with none, in turns; no burst is
	// none, and no rounds are 3.
	Burst, BurstRounds, Warm int
	// Memory is how many ready networks, and how many warm containers, are measured
	// for what one costs; none is none.
	Memory int
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
	case o.Claims < 0 || o.Claims > container.MaxSize:
		return fmt.Errorf("claims are %d, there have to be 0 to %d", o.Claims, container.MaxSize)
	case o.Rate <= 0 || o.Rate > 1000:
		return fmt.Errorf("the rate is %v claims a second, it has to be over 0 and at most 1000", o.Rate)
	case o.Burst < 0 || o.Burst > maxBurst || o.BurstRounds < 1:
		return fmt.Errorf("a burst is of %d sessions in %d rounds, there have to be 0 to %d in one round at least", o.Burst, o.BurstRounds, maxBurst)
	case o.Burst > 0 && (o.Warm < 1 || o.Warm > container.MaxSize):
		return fmt.Errorf("a burst comes to %d warm containers, there have to be 1 to %d", o.Warm, container.MaxSize)
	case o.Memory < 0 || o.Memory == 1 || o.Memory > container.MaxSize:
		return fmt.Errorf("the memory of %d is to be measured, there have to be 0 or 2 to %d", o.Memory, container.MaxSize)
	}
	return nil
}

// BootDetails are Result.Details of Boot.
type BootDetails struct {
	Phases []BootPhases  `json:"phases"`           // of our ways, in the order of the rows
	Burst  *BurstDetails `json:"burst,omitempty"`  // nil where none was asked for
	Memory []MemoryParts `json:"memory,omitempty"` // likewise
}

// BootPhases are medians in ms, each of its own: they need not add up.
type BootPhases struct {
	Row    string  `json:"row"`
	Claim  float64 `json:"claim"`
	Create float64 `json:"create"`
	Start  float64 `json:"start"` // of a warm container: until it had heard who it is
	Ready  float64 `json:"ready"` // from there until it answered
	Rest   float64 `json:"rest"`  // the store's second write, the gateway, and the answer
}

// rowEngineBoot is the peer's row; those of ours are in bootModes.
const rowEngineBoot = "engine: create + start"

const (
	bootImage   = "bench-session:latest"
	bootPort    = 8080
	bootWarmups = 3 // of each kind, not counted
	bootLimit   = time.Minute
	maxBurst    = 1000
	askLimit    = 10 * time.Minute // for one request of a burst
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
// a way does ahead of need is never done beside another's turn. Then come what ready
// networks and warm containers cost in memory, the bursts, and the Claims, to a pool
// that has a warm container for each. It works inside a lab only (lab.Reenter).
//
// Score is the engine's p50 ÷ that of our best way without warm containers.
func Boot(ctx context.Context, o BootOptions) (Result, error) {
	o.N, o.Rate, o.BurstRounds = cmp.Or(o.N, 50), cmp.Or(o.Rate, 20), cmp.Or(o.BurstRounds, 3)
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
	phases [][]holdfast.Phases // of each agent's boots
	took   [][]float64         // ms; the engine's own first, then the agents'
}

func newBootBench(ctx context.Context, o BootOptions, modes []bootMode) (*bootBench, error) {
	x := &bootBench{o: o, client: &http.Client{Timeout: askLimit, Transport: &http.Transport{DisableKeepAlives: true}}}
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
	if err := x.turns(ctx); err != nil {
		return Result{}, err
	}
	r := Result{Name: "boot", Machine: EngineMachine(info)}
	d := BootDetails{}
	x.judge(&r, &d)
	for _, part := range []func(context.Context, *Result, *BootDetails) error{x.memory, x.bursts, x.claims} {
		if err := part(ctx, &r, &d); err != nil {
			return Result{}, err
		}
	}
	r.Details, r.Failed = d, int(x.failed.Load())
	return r, nil
}

// turns has each way boot a session N times.
func (x *bootBench) turns(ctx context.Context) error {
	kinds := []func(context.Context, int) (time.Duration, error){x.engineBoot}
	x.phases = make([][]holdfast.Phases, len(x.agents))
	for n, a := range x.agents {
		kinds = append(kinds, func(ctx context.Context, i int) (time.Duration, error) {
			took, phases, err := x.turn(ctx, a, i)
			if i >= bootWarmups {
				x.phases[n] = append(x.phases[n], phases)
			}
			return took, err
		})
	}
	x.took = make([][]float64, len(kinds))
	for i := range x.o.N + bootWarmups {
		if i%10 == 0 {
			fmt.Fprintf(x.o.Progress, "%d of %d boots of each kind\n", max(0, i-bootWarmups), x.o.N)
		}
		for n := range kinds {
			k := (i + n) % len(kinds) // which goes first changes from turn to turn
			if err := settleAll(ctx, x, x.agents, bootLimit); err != nil {
				return err
			}
			t, err := kinds[k](ctx, i)
			if err != nil {
				return err
			}
			if i >= bootWarmups {
				x.took[k] = append(x.took[k], millis(t))
			}
		}
	}
	return nil
}

// judge makes the rows of the turns, their score, and where the time went.
func (x *bootBench) judge(r *Result, d *BootDetails) {
	peer := NewRow(rowEngineBoot, "ms", x.took[0])
	r.Rows = append(r.Rows, peer)
	best := math.Inf(1)
	for i, a := range x.agents {
		row := NewRow(a.mode.row, "ms", x.took[i+1])
		r.Rows = append(r.Rows, row)
		if !a.mode.warm {
			best = min(best, row.P50)
		}
		p := x.phasesOf(i)
		d.Phases = append(d.Phases, p)
		r.Notes = append(r.Notes,
			fmt.Sprintf("%s: its p50 is %.2f times, its p99 %.2f times the engine's own create + start", row.Name, row.P50/peer.P50, row.P99/peer.P99),
			fmt.Sprintf("%s: claim %s, create %s, start %s, ready %s, the rest %s ms (medians)", row.Name, figure(p.Claim), figure(p.Create), figure(p.Start), figure(p.Ready), figure(p.Rest)))
	}
	r.Score = peer.P50 / best
}

// phasesOf are the medians of an agent's boots.
func (x *bootBench) phasesOf(agent int) BootPhases {
	p := BootPhases{Row: x.agents[agent].mode.row}
	for to, of := range map[*float64]func(holdfast.Phases) holdfast.Millis{
		&p.Claim: func(p holdfast.Phases) holdfast.Millis { return p.Claim }, &p.Create: func(p holdfast.Phases) holdfast.Millis { return p.Create },
		&p.Start: func(p holdfast.Phases) holdfast.Millis { return p.Start }, &p.Ready: func(p holdfast.Phases) holdfast.Millis { return p.Ready },
	} {
		var all []float64
		for _, phases := range x.phases[agent] {
			all = append(all, millis(time.Duration(of(phases))))
		}
		*to = NewRow("", "", all).P50
	}
	var rest []float64
	for i, phases := range x.phases[agent] {
		rest = append(rest, x.took[agent+1][i]-millis(time.Duration(phases.Total())))
	}
	p.Rest = NewRow("", "", rest).P50
	return p
}

// settleAll waits until every agent has ready what it keeps ready, and nothing left
// to remove.
func settleAll(ctx context.Context, x *bootBench, agents []*bootAgent, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, a := range agents {
		if err := a.settle(ctx, x); err != nil {
			return fmt.Errorf("waiting for the pools of %s to be full: %w", a.mode.name, err)
		}
	}
	return nil
}

// with has f use agents of their own, which end with it.
func (x *bootBench) with(ctx context.Context, modes []bootMode, f func([]*bootAgent) error) (err error) {
	var agents []*bootAgent
	defer func() {
		for _, a := range agents {
			err = errors.Join(err, a.stop())
		}
	}()
	for _, m := range modes {
		a, err := x.startAgent(ctx, m)
		if a != nil {
			agents = append(agents, a)
		}
		if err != nil {
			return fmt.Errorf("the agent of %s: %w", m.name, err)
		}
	}
	return f(agents)
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
func (x *bootBench) turn(ctx context.Context, a *bootAgent, i int) (time.Duration, holdfast.Phases, error) {
	took, err := x.sessionBoot(ctx, a, i)
	if err != nil {
		return 0, holdfast.Phases{}, err
	}
	list, err := a.sessions(ctx, x.client)
	if err != nil {
		return 0, holdfast.Phases{}, err
	}
	var phases holdfast.Phases
	for _, s := range list {
		phases = s.Boot
	}
	return took, phases, x.removeAll(ctx, a, list)
}

// removals is how many containers the engine is asked to remove at once.
const removals = 4

// removeAll removes the containers of sessions.
func (x *bootBench) removeAll(ctx context.Context, a *bootAgent, list []api.Session) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(removals)
	for _, s := range list {
		all.Go(func() error { return a.engine.Remove(ctx, s.ContainerID) })
	}
	return all.Wait()
}
