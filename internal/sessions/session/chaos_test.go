package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/test/lab/labtest"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// TestAtMostOneContainerWhateverFails subjects a node to random events: requests,
// stops, drains, deaths, restarts of the agent, lost leases, deleted records, and
// restores of the store from a backup. The engine and the store become unavailable, or
// do a call and report that it failed. At no time may two containers run for one key,
// or a container start with an epoch lower than an earlier one of its key. A drain must
// not report success while a container runs. After the faults end, every record has its
// container and every container its record.
func TestAtMostOneContainerWhateverFails(t *testing.T) {
	rounds, steps := 4, 60
	switch {
	case testing.Short():
		rounds, steps = 2, 30
	case labtest.Long():
		rounds = 100
	}
	for i := range rounds {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d warm %v", seed, i%2 == 1), func(t *testing.T) { newChaos(t, seed, i%2 == 1).run(steps) })
	}
}

type chaos struct {
	*node
	t      *testing.T
	rng    *rand.Rand
	mem    *memstore.Store
	lost   *lossy
	fake   *fakeEngine
	cfg    Config
	during sync.WaitGroup // requests without an answer
	backup func()         // restores the store; nil: none
	warm   *chaosPool     // nil: no warm containers
}

var keys = []holdfast.SessionKey{"a", "b", "c"}

// anywhere returns a template for the fake engine. One listener of this process serves
// all its containers.
func anywhere(t *testing.T) Template {
	l, err := net.Listen("tcp", "127.0.0.1:0") // every container's server
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	web := Template{Name: "web", Image: "none", Network: "host", Ready: Readiness{Timeout: 5 * time.Second}}
	if web.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	return web
}

func newChaos(t *testing.T, seed uint64, warm bool) *chaos {
	mem := memstore.New(1000)
	c := &chaos{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), mem: mem, fake: newFakeEngine(t),
		lost: &lossy{Store: mem, lost: map[string]bool{}},
		cfg:  Config{Templates: []Template{anywhere(t)}, IdleStop: 300 * time.Millisecond, Boots: 2},
	}
	if c.rng.IntN(2) == 0 && !warm {
		c.cfg.Templates[0].Steps = []Step{{Name: "first", Timeout: 5 * time.Second}, {Name: "second", Timeout: 5 * time.Second}}
	}
	if c.rng.IntN(2) == 0 {
		c.cfg.Templates[0].Snapshot = Snapshot{Command: []string{"/bin/sleep", "0.0" + strconv.Itoa(c.rng.IntN(10))}, Timeout: time.Second}
	}
	c.fake.guarded = true
	c.fake.stepTakes = time.Duration(c.rng.IntN(10)) * time.Millisecond
	t.Cleanup(c.fake.close)
	c.heal()
	runRestores(t, mem, filepath.Join(t.TempDir(), "seen"), 10*time.Millisecond)
	if warm {
		c.warm = newChaosPool(t)
	}
	c.agent()
	return c
}

// agent starts the next agent.
func (c *chaos) agent() {
	s := setup{id: "n1", store: c.mem, faulty: c.lost, engine: c.fake, dead: &recorder{fake: c.fake}, cfg: c.cfg}
	if c.warm == nil {
		c.node = newNode(c.t, s)
		return
	}
	run := c.warm.next(c.t, c.fake, c.cfg.Templates[0])
	s.warm = c.warm
	c.node = newNode(c.t, s)
	run()
}

func (c *chaos) run(steps int) {
	acts := []func(){c.acquire, c.acquire, c.acquire, c.stop, c.die, c.storeAway, c.engineAway, c.loseWrite, c.lateClaim, c.loseOrder, c.restart, c.drain, c.loseLease, c.loseRecord, c.restoreStore}
	for range steps {
		acts[c.rng.IntN(len(acts))]()
		time.Sleep(time.Duration(c.rng.IntN(15)) * time.Millisecond)
	}
	c.heal()
	c.during.Wait()
	var wrong string
	defer func() {
		if wrong != "" {
			c.t.Error(wrong)
		}
	}()
	poll.Until(c.t, "every record has its container", func() bool { wrong = c.odd(); return wrong == "" })
	if bad := c.fake.wrong(); len(bad) > 0 {
		c.t.Error(bad)
	}
	for _, key := range keys {
		c.serve(c.t, key)
	}
	if c.warm != nil {
		// Few steps may have claimed no warm container. Without faults, this claims one.
		if _, err := c.Stop(c.t.Context(), keys[0]); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
			c.t.Error(err)
		}
		poll.Until(c.t, "a container is warm", func() bool { return c.warm.Ready(c.cfg.Templates[0].Name) })
		c.serve(c.t, keys[0])
		c.warm.judge(c.t, c.fake)
	}
}

// odd returns the first inconsistency, or "" if there is none.
func (c *chaos) odd() string {
	running := c.fake.running()
	for _, i := range c.List() {
		if i.Owner.State != holdfast.Ready {
			return fmt.Sprintf("%s is %s: %s", i.Owner.Key, i.Owner.State, i.Error)
		}
	}
	for _, o := range c.records(c.t) {
		if list := running[o.Key]; len(list) != 1 || list[0].ID != o.ContainerID {
			return fmt.Sprintf("record %+v, containers %+v", o, list)
		}
		delete(running, o.Key)
	}
	for key, list := range running {
		return fmt.Sprintf("%s has no record, and containers %+v", key, list)
	}
	return ""
}

// heal ends all faults.
func (c *chaos) heal() {
	c.mem.SetDown(false)
	c.fake.mu.Lock()
	c.fake.down = false
	clear(c.fake.lose)
	c.fake.mu.Unlock()
	c.lost.mu.Lock()
	for _, what := range writes {
		c.lost.lost[what] = true
	}
	c.lost.late = nil // no further write is late, so that during can be waited for
	c.lost.mu.Unlock()
}

var writes = []string{"claim", "advance starting", "advance ready", "advance leaving", "release"}

func (c *chaos) key() holdfast.SessionKey { return keys[c.rng.IntN(len(keys))] }

func (c *chaos) acquire() {
	key, patience := c.key(), time.Duration(c.rng.IntN(200))*time.Millisecond
	n := c.node
	c.during.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, release, err := n.Acquire(ctx, key, ""); err == nil {
			release()
		}
	})
}

func (c *chaos) stop() {
	key, n := c.key(), c.node
	c.during.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		_, _ = n.Stop(ctx, key) // the result does not matter
	})
}

func (c *chaos) die() {
	c.fake.mu.Lock()
	defer c.fake.mu.Unlock()
	for _, x := range c.fake.containers {
		if x.State == "running" {
			_ = x.cmd.Process.Kill() // it may have ended just now
			return
		}
	}
}

func (c *chaos) storeAway() { c.mem.SetDown(c.rng.IntN(3) == 0) }

func (c *chaos) engineAway() {
	c.fake.mu.Lock()
	defer c.fake.mu.Unlock()
	c.fake.down = c.rng.IntN(3) == 0
}

func (c *chaos) loseWrite() {
	c.lost.mu.Lock()
	defer c.lost.mu.Unlock()
	delete(c.lost.lost, writes[c.rng.IntN(len(writes))])
}

// lateClaim makes the store write the next claim after its caller has given up.
func (c *chaos) lateClaim() {
	after := time.Duration(c.rng.IntN(100)) * time.Millisecond
	c.lost.mu.Lock()
	defer c.lost.mu.Unlock()
	c.lost.late = func(write func()) {
		c.during.Go(func() { time.Sleep(after); write() })
	}
}

func (c *chaos) loseOrder() {
	c.fake.mu.Lock()
	defer c.fake.mu.Unlock()
	c.fake.lose[[]string{"create", "start", "inspect", "remove", "wait"}[c.rng.IntN(5)]] = true
}

// restart ends the agent at a random moment.
func (c *chaos) restart() {
	if c.rng.IntN(4) > 0 {
		return // other events need time between two restarts
	}
	if c.warm != nil {
		c.warm.stop()
	}
	c.end()
	c.during.Wait() // requests end with the agent's process
	c.heal()
	c.agent()
}

func (c *chaos) drain() {
	if c.rng.IntN(3) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
	defer cancel()
	c.StopClaiming()
	b := c.MarkTerminating()
	report := c.deps.Killer.Kill(ctx, b.Targets())
	b.Killed(report)
	b.Snapshot(ctx)
	_, err := b.Release(ctx)
	b.ReleaseLater()
	_, left := b.Settle(ctx)
	if err == nil && len(report.Left)+len(left) == 0 {
		if running := c.fake.running(); len(running) > 0 {
			c.t.Errorf("a clean drain left %v", running)
		}
	}
	c.Claim()
}

// loseRecord deletes records behind the node's back.
func (c *chaos) loseRecord() {
	owners, _, err := c.mem.List(context.Background())
	if err == nil && len(owners) > 0 {
		_, _ = c.mem.Release(context.Background(), owners[c.rng.IntN(len(owners))]) // or the store is away
	}
}

// restoreStore makes a backup of the store, or restores the last one. The lease may be
// gone then.
func (c *chaos) restoreStore() {
	if c.rng.IntN(3) > 0 {
		return
	}
	if c.backup == nil {
		c.backup = c.mem.Backup()
		return
	}
	c.heal()
	c.backup()
	c.backup = nil
	if errors.Is(c.mem.KeepAlive(context.Background(), store.LeaseID(c.lease.Load())), store.ErrLeaseGone) {
		c.newLease()
	}
}

func (c *chaos) loseLease() {
	if c.rng.IntN(4) > 0 {
		return
	}
	c.heal()
	if err := c.mem.Revoke(context.Background(), store.LeaseID(c.lease.Load())); err != nil {
		c.t.Fatal(err)
	}
	c.newLease()
}

// newLease replaces a lease that is gone.
func (c *chaos) newLease() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c.LeaseLost(ctx)
	if running := c.fake.running(); len(running) > 0 {
		c.t.Errorf("after the lease was lost %v still runs", running)
	}
	id, _, err := c.mem.Grant(ctx, time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	c.lease.Store(int64(id))
}
