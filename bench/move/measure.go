package move

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/bench"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/tasks"
)

// sample is one move: the times that the client measured, and the duration of each part.
type sample struct {
	next   time.Duration // notice → next byte on the kept socket
	answer time.Duration // notice → the shell's answer to the next input
	parts  [len(parts)]time.Duration
	image  float64 // bytes
}

// Parts of a move, in their order. Their sum is the whole move.
var parts = [...]string{
	"notice, successors told, session closed", "checkpoint", "image streamed", "seen dead, released", "claimed by the successor",
	"container created", "restored", "server answers", "socket goes on",
}

const (
	partClosed = iota
	partCheckpoint
	partStream
	partGone
	partClaim
	partCreate
	partRestore
	partReady
	partRedial
)

// moved drains the session's node and follows the session to the other one.
func (x *experiment) moved(ctx context.Context, t *terminal, k kind) (s sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	from, owner, err := x.where(ctx, t.key)
	if err != nil {
		return s, err
	}
	before, err := from.figures(ctx)
	if err != nil {
		return s, err
	}
	x.watch.forget()
	n := t.seen()
	notice := time.Now()
	report, err := from.API.Drain(ctx, "", api.DrainRequest{Budget: holdfast.Millis(x.o.Notice)}, func(holdfast.Step) {})
	if err != nil {
		return s, err
	}
	if len(report.Memory.Lost) > 0 {
		err = fmt.Errorf("session %s: %s: %w", t.key, report.Memory.Lost[0].Reason, errLost)
	}
	l, awaitErr := x.watch.await(ctx, t.key, owner.Epoch)
	if awaitErr != nil {
		return s, awaitErr
	}
	next, answer, clientErr := x.goesOn(ctx, t, n, k)
	if err = errors.Join(err, clientErr); err != nil && !errors.Is(err, errLost) {
		return s, err
	}
	after, figErr := from.figures(ctx)
	if figErr != nil {
		return s, figErr
	}
	checkpoint := grown(before, after, `holdfast_session_image_seconds_sum{part="checkpoint"}`)
	stream := grown(before, after, `holdfast_session_image_seconds_sum{part="stream"}`)
	s = timed(notice, report, checkpoint, stream, l, next)
	s.next, s.answer = next.Sub(notice), answer.Sub(notice)
	s.image = after["holdfast_session_image_bytes_total"] - before["holdfast_session_image_bytes_total"]
	return s, errors.Join(err, x.again(ctx, from))
}

// goesOn waits for the first byte from the moved session, and for the shell's answer.
func (x *experiment) goesOn(ctx context.Context, t *terminal, n int, k kind) (next, answer time.Time, err error) {
	word := n
	if _, err := t.await(ctx, n, func(s string) bool { word++; return s == told }); err != nil {
		return next, answer, err
	}
	first, err := t.await(ctx, word, func(string) bool { return true })
	if err != nil {
		return next, answer, err
	}
	answer, err = t.check(ctx, word)
	if err == nil {
		err = k.whole(ctx, t)
	}
	return first.at, answer, err
}

// timed divides the time from the notice to the next byte.
func timed(notice time.Time, r holdfast.DrainReport, checkpoint, stream time.Duration, l life, next time.Time) (s sample) {
	for _, step := range r.Steps {
		s.parts[partClosed] += time.Duration(step.Took)
		if step.Name == "mark terminating" {
			break
		}
	}
	boot := l.owner.Boot
	s.parts[partCheckpoint], s.parts[partStream] = checkpoint, stream
	s.parts[partGone] = l.gone.Sub(notice) - s.parts[partClosed] - checkpoint - stream
	s.parts[partCreate], s.parts[partRestore] = time.Duration(boot.Create), time.Duration(boot.Start)
	s.parts[partClaim] = l.claimed.Sub(l.gone)
	s.parts[partReady] = l.ready.Sub(l.claimed) - s.parts[partCreate] - s.parts[partRestore]
	s.parts[partRedial] = next.Sub(l.ready)
	return s
}

func grown(before, after map[string]float64, name string) time.Duration {
	return time.Duration((after[name] - before[name]) * float64(time.Second))
}

// where returns the node that owns a session, and the session's record.
func (x *experiment) where(ctx context.Context, key holdfast.SessionKey) (*node, holdfast.Owner, error) {
	o, err := x.watch.store.Get(ctx, key)
	if err != nil {
		return nil, o, err
	}
	for _, m := range x.hosts() {
		if m.ID == o.Node {
			return m, o, nil
		}
	}
	return nil, o, fmt.Errorf("session %s is on node %s, which was to have none", key, o.Node)
}

// again uncordons a drained node, and waits until all nodes have read that.
func (x *experiment) again(ctx context.Context, m *node) error {
	if err := m.API.Uncordon(ctx, ""); err != nil {
		return err
	}
	return x.known(ctx, func(n holdfast.Node) bool { return n.Draining == (n.ID == x.gateway().ID) })
}

// begin opens a session of the kind, sets its variable and starts its counter.
func (x *experiment) begin(ctx context.Context, key holdfast.SessionKey, k kind, every string) (*terminal, error) {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	if _, err := x.gateway().API.StartSession(ctx, key, k.name); err != nil {
		return nil, err
	}
	t, _, err := connect(ctx, x.gateway().gateway, key)
	if err != nil {
		return nil, err
	}
	if err := t.begin(ctx, every); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// boot is the time from a client's connect to its first byte, and the duration of each
// part.
type boot struct {
	took  time.Duration
	parts [len(bootParts)]time.Duration
}

// bootParts are the parts of a boot, in their order. Their sum is the whole boot.
var bootParts = [...]string{"asked, claimed; an image is read", "container created", "started, or restored", "server answers"}

// booted divides the boot time of a session into its parts.
func (x *experiment) booted(ctx context.Context, key holdfast.SessionKey, took time.Duration) (b boot, err error) {
	_, owner, err := x.where(ctx, key)
	p := owner.Boot
	create, start, ready := time.Duration(p.Create), time.Duration(p.Start), time.Duration(p.Ready)
	b.took, b.parts = took, [...]time.Duration{took - create - start - ready, create, start, ready}
	return b, err
}

// cold measures a cold boot of a small session.
func (x *experiment) cold(ctx context.Context, n int) (b boot, err error) {
	key := holdfast.SessionKey(fmt.Sprintf("cold-%d", n))
	t, took, err := connect(ctx, x.gateway().gateway, key)
	if err != nil {
		return b, err
	}
	t.close()
	if b, err = x.booted(ctx, key, took); err != nil {
		return b, err
	}
	return b, x.stop(ctx, key)
}

// asleepTime is how long a session is suspended before it is resumed.
const asleepTime = 500 * time.Millisecond

// resumed measures the resume of a suspended session.
func (x *experiment) resumed(ctx context.Context, k kind, n int) (b boot, err error) {
	key := holdfast.SessionKey(fmt.Sprintf("sleeper-%s-%d", k.name, n))
	before, err := x.begin(ctx, key, k, "0.2")
	if err != nil {
		return b, err
	}
	before.close() // its kept socket would wake the session
	if _, err := x.gateway().API.SuspendSession(ctx, key); err != nil {
		return b, err
	}
	// A node reserves a session that has just left for its successor.
	if err := errors.Join(x.warm(ctx, k), tasks.Sleep(ctx, asleepTime)); err != nil {
		return b, err
	}
	after, took, err := connect(ctx, x.gateway().gateway, key)
	if err != nil {
		return b, err
	}
	defer after.close()
	after.secret = before.secret
	if _, err := after.check(ctx, 0); err != nil {
		return b, err
	}
	if err := k.whole(ctx, after); err != nil {
		return b, err
	}
	if b, err = x.booted(ctx, key, took); err != nil {
		return b, err
	}
	return b, x.stop(ctx, key)
}

func (x *experiment) stop(ctx context.Context, key holdfast.SessionKey) error {
	_, err := x.gateway().API.StopSession(ctx, key)
	if errors.Is(err, holdfast.ErrNotFound) {
		err = nil
	}
	return err
}

// failed records a lost memory or a broken socket. It returns any other error.
func (x *experiment) failed(err error) error {
	if err == nil {
		return nil
	}
	x.failures = append(x.failures, strings.ReplaceAll(err.Error(), "\n", "; "))
	x.say("FAILED: %v", err)
	if errors.Is(err, errLost) || errors.Is(err, errSocket) {
		return nil
	}
	return err
}

const warmups = 1 // moves and boots that are not counted

// moves measures n moves of one session of the kind. If beside is not nil, a cold boot
// precedes each move.
func (x *experiment) moves(ctx context.Context, k kind, n int, beside func(int) error) ([]sample, error) {
	key := holdfast.SessionKey(k.name)
	t, err := x.begin(ctx, key, k, "0.2")
	if err != nil {
		return nil, err
	}
	defer func() { t.close() }()
	var all []sample
	for i := range n + warmups {
		if beside != nil {
			if err := beside(i); err != nil {
				return nil, err
			}
		}
		s, err := x.moved(ctx, t, k)
		if err := x.failed(err); err != nil {
			return nil, err
		}
		if err != nil {
			// The next measurement needs an intact session.
			t.close()
			if err := x.stop(ctx, key); err != nil {
				return nil, err
			}
			if t, err = x.begin(ctx, key, k, "0.2"); err != nil {
				return nil, err
			}
			continue
		}
		x.say("a %s session has moved: %v to the next byte, an image of %.1f MiB", k.name, s.next.Round(time.Millisecond), s.image/(1<<20))
		if i >= warmups {
			all = append(all, s)
		}
	}
	return all, x.stop(ctx, key)
}

// run takes all measurements.
func (x *experiment) run(ctx context.Context) (bench.Result, error) {
	f := findings{notice: x.o.Notice}
	info, err := x.engine.Info(ctx)
	if err != nil {
		return bench.Result{}, err
	}
	f.machine = bench.EngineMachine(info)
	f.small, err = x.moves(ctx, small, x.o.N, func(i int) error {
		took, err := x.cold(ctx, i)
		if err != nil {
			return err
		}
		awake, err := x.resumed(ctx, small, i)
		if i >= warmups && err == nil {
			f.cold, f.awake = append(f.cold, took), append(f.awake, awake)
		}
		return x.failed(err)
	})
	if err != nil {
		return bench.Result{}, err
	}
	if x.o.Large > 0 {
		f.large, err = x.moves(ctx, large, x.o.Large, func(i int) error {
			awake, err := x.resumed(ctx, large, i)
			if i >= warmups && err == nil {
				f.awakeLarge = append(f.awakeLarge, awake)
			}
			return x.failed(err)
		})
		if err != nil {
			return bench.Result{}, err
		}
	}
	if x.o.Forks > 0 {
		if f.forks, err = x.forked(ctx); err != nil {
			return bench.Result{}, err
		}
	}
	if x.o.Many > 0 {
		if f.many, err = x.drainMany(ctx); err != nil {
			return bench.Result{}, err
		}
	}
	f.failures = x.failures
	return f.result(), nil
}

// drainMany drains a node with many sessions, within the notice.
func (x *experiment) drainMany(ctx context.Context) (*Many, error) {
	from, to := x.hosts()[0], x.hosts()[1]
	if err := to.API.Cordon(ctx, ""); err != nil {
		return nil, err
	}
	if err := x.known(ctx, func(n holdfast.Node) bool { return n.Draining == (n.ID != from.ID) }); err != nil {
		return nil, err
	}
	all := make([]*terminal, x.o.Many)
	defer func() {
		for _, t := range all {
			if t != nil {
				t.close()
			}
		}
	}()
	for i := range all {
		var err error
		if all[i], err = x.begin(ctx, holdfast.SessionKey(fmt.Sprintf("many-%d", i)), middle, "1"); err != nil {
			return nil, err
		}
	}
	x.say("%d sessions are up", len(all))
	if err := x.again(ctx, to); err != nil {
		return nil, err
	}
	before, err := from.figures(ctx)
	if err != nil {
		return nil, err
	}
	seen := make([]int, len(all))
	for i, t := range all {
		seen[i] = t.seen()
	}
	notice := time.Now()
	report, err := from.API.Drain(ctx, "", api.DrainRequest{Budget: holdfast.Millis(x.o.Notice)}, func(holdfast.Step) {})
	if err != nil {
		return nil, err
	}
	m := &Many{Sessions: len(all), DrainMS: millis(time.Since(notice)), Said: report.Notice}
	next := make([]float64, len(all))
	errs := make([]error, len(all))
	var work sync.WaitGroup
	for i, t := range all {
		work.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, clientTime)
			defer cancel()
			at, _, err := x.goesOn(ctx, t, seen[i], middle)
			next[i], errs[i] = millis(at.Sub(notice)), err
		})
	}
	work.Wait()
	for i, err := range errs {
		if err == nil {
			m.WithMemory++
			m.next = append(m.next, next[i])
		}
		if err := x.failed(err); err != nil {
			return nil, err
		}
	}
	after, err := from.figures(ctx)
	if err != nil {
		return nil, err
	}
	m.ImageMiB = (after["holdfast_session_image_bytes_total"] - before["holdfast_session_image_bytes_total"]) / (1 << 20) / math.Max(float64(m.WithMemory), 1)
	x.say("%d of %d sessions have moved with their memory", m.WithMemory, m.Sessions)
	return m, nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
