package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/bench/rig"
	"holdfast/internal/control/api"
)

// schedule chooses the next act.
type schedule struct {
	list   []Act // in this order, repeated
	random *rand.Rand
	mixed  bool // each round in a new random order
	at     int
}

// newSchedule parses none, mixed, or a list of acts with commas. memory says that
// sessions keep their memory.
func newSchedule(text string, memory bool, random *rand.Rand) (*schedule, error) {
	s := &schedule{random: random}
	switch text {
	case "none":
		return s, nil
	case Mixed:
		s.list, s.mixed = Acts(memory), true
		return s, nil
	}
	for _, word := range strings.Split(text, ",") {
		if !slices.Contains(allActs(memory), Act(word)) {
			return nil, holdfast.WithHint(fmt.Errorf("chaos: unknown act %q", word), "none, "+Mixed+", or a list with commas of: "+ActNames(memory))
		}
		s.list = append(s.list, Act(word))
	}
	return s, nil
}

// next returns the next act. It returns false if there is none.
func (s *schedule) next() (Act, bool) {
	if len(s.list) == 0 {
		return "", false
	}
	if s.mixed && s.at%len(s.list) == 0 {
		s.random.Shuffle(len(s.list), func(i, j int) { s.list[i], s.list[j] = s.list[j], s.list[i] })
	}
	a := s.list[s.at%len(s.list)]
	s.at++
	return a, true
}

// event is an act that happened.
type event struct {
	act        Act
	node       holdfast.NodeID
	begin, end time.Duration                          // CLOCK_BOOTTIME
	owned      map[holdfast.SessionKey]holdfast.Epoch // sessions that the node served at the beginning
	asleep     int                                    // the node's sessions that slept at the beginning
	drain      holdfast.DrainReport                   // of an act with a notice
}

// chaos runs acts one after the other until a moment (CLOCK_BOOTTIME), each at least
// once. An act that has begun is completed. The next one begins after the interval
// every, or when the previous one has ended, whichever is later.
func (x *experiment) chaos(ctx context.Context, s *schedule, every, until time.Duration) ([]event, error) {
	var past []event
	life := context.WithoutCancel(ctx)
	begin := now()
	for {
		next := begin + every
		if s.at >= len(s.list) && next >= until {
			if err := x.serveAll(ctx, past); err != nil {
				return past, err
			}
			sleep(ctx, until-now())
			return past, ctx.Err()
		}
		if !sleep(ctx, next-now()) {
			return past, ctx.Err()
		}
		begin = now()
		act, ok := s.next()
		if !ok {
			continue
		}
		m := x.victim(s.random)
		e := event{act: act, begin: begin}
		switch {
		case act.onAll():
			e.owned = x.observer.owned("")
		case !act.onEtcd():
			e.node, e.owned = m.id, x.observer.owned(m.id)
		}
		if act.few() {
			e.owned = someOf(e.owned, s.random)
		}
		e.asleep = x.asleep(life, m)
		x.say("%s %s (%d sessions, %d asleep)", act, e.node, len(e.owned), e.asleep)
		if err := x.perform(life, act, m, &e); err != nil {
			return past, fmt.Errorf("%s %s: %w", act, e.node, err)
		}
		if err := x.whole(life); err != nil {
			return past, fmt.Errorf("after %s %s: %w", act, e.node, err)
		}
		e.end = now()
		past = append(past, e)
		if err := x.faults(); err != nil {
			return past, err
		}
	}
}

// asleep returns the number of a node's sessions that sleep or are suspended, 0 if it does not
// answer: after an act that hit it.
func (x *experiment) asleep(ctx context.Context, m *node) (n int) {
	if x.o.Sleep == 0 {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	all, _ := m.api.Sessions(ctx)
	for _, s := range all {
		if s.Sleep.Asleep() || s.State == holdfast.IsSuspended && s.Node == m.id {
			n++
		}
	}
	return n
}

// backLimit is how long after the last act a session may still not be served.
const backLimit = 2 * rig.Patience

// serveAll waits until a client is served by each session after the last act, and notes
// how long that took.
func (x *experiment) serveAll(ctx context.Context, past []event) error {
	if len(past) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, backLimit)
	defer cancel()
	err := x.load.connectAll(ctx)
	x.back = now() - past[len(past)-1].end
	if err != nil {
		return fmt.Errorf("after the last act: %w", err)
	}
	return nil
}

// victim returns a node that serves sessions, or any node if none does.
func (x *experiment) victim(random *rand.Rand) *node {
	var serving []*node
	for _, m := range x.nodes {
		if len(x.observer.owned(m.id)) > 0 {
			serving = append(serving, m)
		}
	}
	if len(serving) == 0 {
		serving = x.nodes
	}
	return serving[random.IntN(len(serving))]
}

const (
	// awayFor is the downtime of a killed agent: shorter than any fence.
	awayFor = 300 * time.Millisecond
	// longer is the time by which an outage exceeds the lease's TTL.
	longer = 2 * time.Second
	// leaderAway is the downtime of an etcd member.
	leaderAway = 3 * time.Second
)

func (x *experiment) perform(ctx context.Context, act Act, m *node, e *event) (err error) {
	t := timing(x.o.TTL)
	switch act {
	case Notice:
		if e.drain, err = m.drain(ctx); err != nil {
			return err
		}
		return m.api.Uncordon(ctx, "")
	case Restart:
		if e.drain, err = m.drain(ctx); err != nil {
			return err
		}
		m.leave(ctx)
		if err := m.agent.Terminate(rig.Patience); err != nil {
			return err
		}
		return m.boot(ctx)
	case AgentKilled:
		m.killAgent()
		sleep(ctx, awayFor)
		return m.boot(ctx)
	case Gone:
		if err := x.vanish(ctx, m); err != nil {
			return err
		}
		sleep(ctx, t.TTL+longer)
		return m.boot(ctx)
	case Stopped:
		m.live.Store(false)
		m.agent.Signal(unix.SIGSTOP)
		sleep(ctx, t.TTL+longer)
		m.agent.Signal(unix.SIGCONT)
		return m.awaitReady(ctx)
	case DeadmanKilled, DeadmanStopped, GuardianKilled, GuardianStopped:
		return x.harm(ctx, act, m)
	case CutShort:
		return m.cutFor(ctx, t.Fence/2)
	case CutLong:
		if x.o.BreakFence {
			return x.cutUntilTwice(ctx, m, e)
		}
		return m.cutFor(ctx, t.TTL+longer)
	case LeaderLost:
		return loseLeader(ctx, x.etcd)
	case Upgrade:
		return x.upgrade(ctx, m)
	case EngineKilled, EngineRestarted:
		return x.loseEngine(ctx, act)
	case DiskFull:
		return x.fillDisk(ctx, m)
	case Clock:
		return x.setClocks(ctx, m)
	case MemoryPressure:
		return x.squeeze(ctx, m)
	case StoreRestored:
		return x.restoreStore(ctx, m)
	case RecordsLost:
		return x.observer.forget(ctx, e.owned)
	case Clone:
		return x.clone(ctx, m)
	case Move, Suspend:
		return x.each(e.owned, func(key holdfast.SessionKey) error { return m.send(ctx, act, key) })
	case Fork:
		return x.each(e.owned, func(key holdfast.SessionKey) error { return x.fork(ctx, m, key) })
	}
	return fmt.Errorf("unknown act %q", act)
}

// fewAtOnce is the number of sessions that an act on a few sessions hits.
const fewAtOnce = 3

func someOf(owned map[holdfast.SessionKey]holdfast.Epoch, random *rand.Rand) map[holdfast.SessionKey]holdfast.Epoch {
	keys := slices.Sorted(maps.Keys(owned))
	random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	some := map[holdfast.SessionKey]holdfast.Epoch{}
	for _, k := range keys[:min(fewAtOnce, len(keys))] {
		some[k] = owned[k]
	}
	return some
}

// each calls do for the sessions concurrently.
func (x *experiment) each(keys map[holdfast.SessionKey]holdfast.Epoch, do func(holdfast.SessionKey) error) error {
	var g errgroup.Group
	for key := range keys {
		g.Go(func() error { return do(key) })
	}
	return g.Wait()
}

// send moves a session off the node. A session that is leaving already, or that loses
// its memory on the way, is not an error: the records show its outcome.
func (m *node) send(ctx context.Context, act Act, key holdfast.SessionKey) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	var err error
	if act == Move {
		_, err = m.api.MoveSession(ctx, key, api.MoveRequest{Elsewhere: true})
	} else {
		_, err = m.api.SuspendSession(ctx, key)
	}
	return unlessLeaving(err)
}

// unlessLeaving returns nil for the errors of a session that is leaving, or loses its memory.
func unlessLeaving(err error) error {
	for _, may := range []error{holdfast.ErrBusy, holdfast.ErrNotFound, holdfast.ErrNoMemory} {
		if errors.Is(err, may) {
			return nil
		}
	}
	return err
}

// fork starts a copy of a session, connects a client to it, and stops it. Its ticks and its records
// are judged like those of the other sessions.
func (x *experiment) fork(ctx context.Context, m *node, key holdfast.SessionKey) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	child := key + "-fork"
	if _, err := m.api.ForkSession(ctx, key, []holdfast.SessionKey{child}); err != nil {
		return unlessLeaving(err)
	}
	c, err := x.load.connect(ctx, child, now())
	if err != nil {
		return fmt.Errorf("the copy %s is not served: %w", child, err)
	}
	c.CloseNow()
	_, err = m.api.StopSession(ctx, child)
	return unlessLeaving(err)
}

func (m *node) cutFor(ctx context.Context, d time.Duration) error {
	m.link.cut()
	sleep(ctx, d)
	m.link.heal()
	return m.awaitReady(ctx)
}

// cutUntilTwice cuts a node off until other nodes serve all its sessions, and for one
// second more, in which its own containers keep running.
func (x *experiment) cutUntilTwice(ctx context.Context, m *node, e *event) error {
	m.link.cut()
	for end := now() + rig.Patience; now() < end && !x.observer.moved(e.owned); {
		sleep(ctx, 50*time.Millisecond)
	}
	sleep(ctx, time.Second)
	m.link.heal()
	return m.awaitReady(ctx)
}

// loseLeader kills the leader of etcd and starts it again.
func loseLeader(ctx context.Context, c *rig.Cluster) error {
	m, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	m.Kill()
	sleep(ctx, leaderAway)
	if err := m.Launch(); err != nil {
		return err
	}
	return m.AwaitReady(ctx)
}
