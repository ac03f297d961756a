package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/sessions/pool/container"
	"holdfast/test/lab"
)

// BootOptions configures `holdfast bench boot`.
type BootOptions struct {
	N int // boots of each kind; 0 is 50
	// Claims is the number of sessions that claim from a pool of as many warm
	// containers, at Rate sessions a second. 0 claims skips the part; a rate of 0 is 20.
	Claims int
	Rate   float64
	// Burst is the number of sessions requested at once. In each of BurstRounds rounds they
	// are requested from an agent with Warm containers and from one without, in turns.
	// A burst of 0 skips the part; 0 rounds is 3.
	Burst, BurstRounds, Warm int
	// Bursts are the kinds of bursts, of Bursts(). None is all of them.
	Bursts []string
	// Refill is the number of sessions that boot in each of BurstRounds turns while the pool
	// of another template is full, and while it refills. 0 skips the part.
	Refill int
	// Memory is the number of warm containers over which the
	// memory of one is averaged. 0 skips the part.
	Memory  int
	Dockerd string // directory of another engine, as for lab.Options.With
	// Agent is the command line of an agent: the program holdfast with the argument
	// agent. The bench appends --config FILE.
	Agent    []string
	Progress io.Writer // receives progress lines; nil discards them
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o BootOptions) Check() error {
	switch {
	case o.N < 1:
		return fmt.Errorf("boots is %d, it must be at least 1", o.N)
	case o.Claims < 0 || o.Claims > container.MaxSize:
		return fmt.Errorf("claims is %d, it must be 0 to %d", o.Claims, container.MaxSize)
	case o.Rate <= 0 || o.Rate > 1000:
		return fmt.Errorf("the rate is %v claims a second, it must be over 0 and at most 1000", o.Rate)
	case o.Burst < 0 || o.Burst > maxBurst || o.BurstRounds < 1:
		return fmt.Errorf("a burst has %d sessions in %d rounds, it must have 0 to %d sessions in at least 1 round", o.Burst, o.BurstRounds, maxBurst)
	case o.Burst > 0 && (o.Warm < 1 || o.Warm > container.MaxSize):
		return fmt.Errorf("a burst has %d warm containers, it must have 1 to %d", o.Warm, container.MaxSize)
	case slices.ContainsFunc(o.Bursts, func(kind string) bool { return !slices.Contains(Bursts(), kind) }):
		return fmt.Errorf("bursts is %s, it must be of %s", strings.Join(o.Bursts, ","), strings.Join(Bursts(), ", "))
	case o.Refill < 0 || o.Refill > maxBurst:
		return fmt.Errorf("refill is %d, it must be 0 to %d", o.Refill, maxBurst)
	case o.Memory < 0 || o.Memory == 1 || o.Memory > container.MaxSize:
		return fmt.Errorf("memory is %d, it must be 0 or 2 to %d", o.Memory, container.MaxSize)
	}
	return nil
}

// BootDetails is Result.Details of Boot.
type BootDetails struct {
	Phases []BootPhases   `json:"phases"`           // of Holdfast's modes, in the order of the rows
	Burst  *BurstDetails  `json:"burst,omitempty"`  // nil if the burst was skipped
	Refill *RefillDetails `json:"refill,omitempty"` // nil if the part was skipped
	Memory []MemoryParts  `json:"memory,omitempty"` // nil if the memory was skipped
}

// BootPhases has the median of each phase in ms. The medians need not add up.
type BootPhases struct {
	Row    string  `json:"row"`
	Claim  float64 `json:"claim"`
	Create float64 `json:"create"`
	Start  float64 `json:"start"` // of a warm container: until it received its session's identity
	Ready  float64 `json:"ready"` // from Start until the server answered
	Rest   float64 `json:"rest"`  // the store's second write, the gateway, and the answer
}

// rowEngineBoot is the peer's row; bootModes has Holdfast's rows.
const rowEngineBoot = "engine: create + start"

const (
	bootImage   = "bench-session:latest"
	bootPort    = 8080
	bootWarmups = 3 // of each kind, not counted
	bootLimit   = time.Minute
	maxBurst    = 1000
	askLimit    = 10 * time.Minute // for one request of a burst
)

// bootMode is one way in which Holdfast boots a session. Each has its own agent.
type bootMode struct {
	name     string // one word, used for the agent and its session keys
	row      string
	template string // the template's fields beside image and port, YAML
	pooled   bool   // the template's network is pooled: the agent makes networks, on a bridge of its own beside Docker
	warm     bool   // containers exist before their sessions; not part of the score
	// containerd: the mode runs on a containerd of its own and not on the peer's
	// engine. Both have the same version of containerd.
	containerd bool
	sdks       bool // for E2B's SDKs
	spare      int  // warm containers of a second template; 0: there is none
}

// bootModes lists Holdfast's modes in the order of the rows.
func bootModes() []bootMode {
	return []bootMode{
		{name: "bridge", row: "session, network of Docker's", template: "network: bridge"},
		{name: "pooled", row: "session, network of Holdfast's", template: "network: pooled", pooled: true},
		{name: "warm", row: "session, container warm before", template: "network: pooled, warm: 4", warm: true, pooled: true},
		{name: "ctr", row: "containerd: session", template: "network: pooled", containerd: true},
	}
}

// Boot measures in turns the engine's own create and start of a container, and whole
// sessions from the request at the gateway to the first byte of the answer: claim,
// create, start, readiness and proxy. Each mode has an agent process of its own with an
// embedded store. All boot the same container from the same image.
// A turn begins when all pools are full and all removals are done, so that no mode
// prepares or cleans up during another's turn. After the turns Boot measures the memory
// of warm containers, the bursts, boots beside a pool that refills, and the claims from a
// pool with a warm container for each. It works only inside a lab (lab.Reenter).
//
// Score is the engine's p50 ÷ the p50 of Holdfast's best mode without warm containers.
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
	o       BootOptions
	dir     string
	lab     *lab.Engine
	engine  engine.Engine
	other   *lab.Containerd // nil if no mode uses containerd
	agents  []*bootAgent    // one for each mode
	image   lab.Image
	client  *http.Client
	failed  atomic.Int64
	subnets int                 // given to agents; see nextSubnet
	phases  [][]holdfast.Phases // phases of each agent's boots
	took    [][]float64         // ms; the engine's boots first, then the agents'
}

func newBootBench(ctx context.Context, o BootOptions, modes []bootMode) (*bootBench, error) {
	x := &bootBench{o: o, client: &http.Client{Timeout: askLimit, Transport: &http.Transport{DisableKeepAlives: true}}}
	var err error
	if x.dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
		return x, err
	}
	if x.lab, err = lab.StartEngine(ctx, lab.Options{}.With(o.Dockerd)); err != nil {
		return x, err
	}
	if x.image, err = sessionImage(); err == nil {
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
	for _, part := range []func(context.Context, *Result, *BootDetails) error{x.memory, x.bursts, x.refills, x.claims} {
		if err := part(ctx, &r, &d); err != nil {
			return Result{}, err
		}
	}
	r.Details, r.Failed = d, int(x.failed.Load())
	return r, nil
}

// turns boots a session N times in each mode.
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
			k := (i + n) % len(kinds) // the order rotates each turn
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

// judge computes the rows of the turns, the score and the phases.
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
			fmt.Sprintf("%s: its p50 is %.2f times, its p99 %.2f times that of the engine's create + start", row.Name, row.P50/peer.P50, row.P99/peer.P99),
			fmt.Sprintf("%s: claim %s, create %s, start %s, ready %s, the rest %s ms (medians)", row.Name, figure(p.Claim), figure(p.Create), figure(p.Start), figure(p.Ready), figure(p.Rest)))
	}
	r.Score = peer.P50 / best
}

// phasesOf returns the median phases of an agent's boots.
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

// settleAll waits until every agent's pools are full and it has nothing left to
// remove.
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

// with starts agents for f and stops them when f returns.
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

// engineBoot measures the engine's create and start of a container like a session's.
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

// sessionBoot measures a client's wait from its request to the first byte of the
// session's answer. The answer must name the session.
func (x *bootBench) sessionBoot(ctx context.Context, a *bootAgent, i int) (time.Duration, error) {
	key := fmt.Sprintf("%s-%d", a.mode.name, i)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/s/%s/%s", a.gateway, key, bootPath), nil)
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
	var session string
	if err == nil {
		session, err = sessionOf(body)
	}
	if err != nil || res.StatusCode != http.StatusOK || session != key {
		x.failed.Add(1)
	}
	return took, nil
}

// turn boots a session and removes its container before the next turn.
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

// removals is the number of containers that are removed concurrently.
const removals = 4

// removeAll removes the containers of sessions. A session whose boot has failed has no container.
func (x *bootBench) removeAll(ctx context.Context, a *bootAgent, list []api.Session) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(removals)
	for _, s := range list {
		if s.ContainerID != "" {
			all.Go(func() error { return a.engine.Remove(ctx, s.ContainerID) })
		}
	}
	return all.Wait()
}
