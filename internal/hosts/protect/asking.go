package protect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/hosts/protect/ready"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
)

// Asked is a question to the new server on one port.
type Asked struct {
	ready.Check
	// Port is the held port to which the question goes; 0 if it goes to another one.
	Port uint16 `json:"port,omitempty"`
	// Recognised says that the question was not requested: the old server's process has
	// the name of a known server, and answered the question before the hold.
	Recognised bool `json:"recognised,omitempty"`
}

// Readiness is how a new server was asked whether it is ready.
type Readiness struct {
	Asked []Asked `json:"asked"`
	// Tries counts the questions; 0: no new server listened.
	Tries int `json:"tries"`
	// Took is the time from the first question, when the server listened, to the last
	// answer.
	Took  time.Duration `json:"took_ns"`
	Ready bool          `json:"ready"`
	// Last is the last answer that does not mean ready.
	Last string `json:"last,omitempty"`
	// Unasked says why the server could not be asked, and counted as ready.
	Unasked string `json:"unasked,omitempty"`
}

const (
	// askLimit and execLimit limit one question. A server that accepts and is not
	// ready yet answers the open question when it is.
	askLimit  = 2 * time.Second
	execLimit = 10 * time.Second
	// askAgain and askRarely limit the pause between two questions. Between them it is
	// a tenth of the time since the first: the wait grows by a tenth at most, and a
	// server that loads for minutes has four questions in a second.
	askAgain  = 10 * time.Millisecond
	askRarely = 250 * time.Millisecond
	// recogniseLimit limits the questions to the old server, before the hold.
	recogniseLimit = 500 * time.Millisecond
)

// reach connects to a listener past a hold.
type reach func(ctx context.Context, to sockdiag.Listener) (net.Conn, error)

// asker asks a new server. One question is open at a time, in a goroutine of its own. Its
// methods are for one goroutine.
type asker struct {
	asked []Asked
	reach reach
	// program runs a program that reaches the server at an address of loopback. A nil
	// error means ready.
	program func(ctx context.Context, at netip.AddrPort) error

	r           Readiness
	since, next time.Time
	open        bool
	answers     chan reply // of the open question
	ctx         context.Context
	cancel      context.CancelFunc
	running     sync.WaitGroup
}

// reply is the answer of the listeners with these cookies.
type reply struct {
	of  map[uint64]bool
	err error
}

// newAsker returns nil if nothing is to be asked.
func newAsker(asked []Asked, r reach, program func(context.Context, netip.AddrPort) error) *asker {
	if len(asked) == 0 {
		return nil
	}
	a := &asker{asked: asked, reach: r, program: program, answers: make(chan reply, 1)}
	a.r.Asked = asked
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// replies delivers the answers to try. A nil asker has none.
func (a *asker) replies() <-chan reply {
	if a == nil {
		return nil
	}
	return a.answers
}

// try asks the listeners, unless a question is open or it is too early.
func (a *asker) try(ls []sockdiag.Listener, now time.Time) {
	if a.open || now.Before(a.next) {
		return
	}
	if a.since.IsZero() {
		a.since = now
	}
	a.open, a.r.Ready = true, false
	a.r.Tries++
	a.running.Go(func() { a.answers <- reply{cookies(ls), a.ask(a.ctx, ls)} })
}

// heard records an answer and reports whether it means ready.
func (a *asker) heard(r reply, now time.Time) bool {
	a.open = false
	took := now.Sub(a.since)
	a.next = now.Add(min(max(took/10, askAgain), askRarely))
	a.r.Took = took
	if errors.Is(r.err, ErrNotAdmitted) {
		a.r.Unasked, r.err = r.err.Error(), nil
	}
	a.r.Ready = r.err == nil
	if r.err != nil {
		a.r.Last = oneLine(r.err.Error())
	}
	return a.r.Ready
}

// end ends an open question, and returns how the server was asked. A nil asker asked
// nothing.
func (a *asker) end() *Readiness {
	if a == nil {
		return nil
	}
	a.cancel()
	a.running.Wait()
	if a.open && !a.r.Ready {
		a.r.Took = time.Since(a.since)
		if a.r.Last == "" {
			a.r.Last = "no answer"
		}
	}
	r := a.r
	return &r
}

// maxLast limits Readiness.Last, in bytes.
const maxLast = 300

// oneLine makes a server's text fit into a line.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return strings.ToValidUTF8(s[:min(len(s), maxLast)], "")
}

// ask asks all questions. It returns the first answer that does not mean ready.
func (a *asker) ask(ctx context.Context, ls []sockdiag.Listener) error {
	for _, q := range a.asked {
		if err := a.one(ctx, q, ls); err != nil {
			return err
		}
	}
	return nil
}

func (a *asker) one(ctx context.Context, q Asked, ls []sockdiag.Listener) error {
	limit := askLimit
	if q.Kind == ready.Exec {
		limit = execLimit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	l, ok := reachable(ls, q.Port)
	if !ok && q.Port != 0 {
		return fmt.Errorf("%w: no listener on port %d that this host reaches", ErrNotAdmitted, q.Port)
	}
	dial := func(ctx context.Context) (net.Conn, error) { return a.reach(ctx, l) }
	var err error
	if q.Kind == ready.Exec {
		err = a.byProgram(ctx, dial)
	} else {
		if q.Port == 0 {
			dial = elsewhere(q.Check)
		}
		err = q.Ask(ctx, dial)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// elsewhere connects to a port that is not held, such as one for health checks.
func elsewhere(c ready.Check) ready.Dial {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", c.Address())
	}
}

// reachable returns a listener on a port that this host reaches, over loopback if there is
// one.
func reachable(ls []sockdiag.Listener, port uint16) (best sockdiag.Listener, ok bool) {
	for _, l := range ls {
		if l.UDP || l.Addr.Port() != port || l.Device != 0 || l.Addr.Addr().IsLinkLocalUnicast() {
			continue
		}
		if !ok || addressOf(l).Addr().IsLoopback() && !addressOf(best).Addr().IsLoopback() {
			best, ok = l, true
		}
	}
	return best, ok
}

// addressOf returns an address at which this host reaches a listener.
func addressOf(l sockdiag.Listener) netip.AddrPort {
	addr := l.Addr.Addr().Unmap()
	if addr.IsUnspecified() {
		v6 := addr.Is6() && l.V6Only
		if addr = netip.AddrFrom4([4]byte{127, 0, 0, 1}); v6 {
			addr = netip.IPv6Loopback()
		}
	}
	return netip.AddrPortFrom(addr, l.Addr.Port())
}

// questions returns what to ask the new server of spec. It asks the old one, to recognise
// its protocol, if the check is Auto.
func questions(ctx context.Context, check ready.Check, ports []uint16, old []sockdiag.Listener, owners func([]sockdiag.Listener) (map[uint32]pidfd.OpenFile, error), r reach) []Asked {
	switch {
	case check.Kind == ready.Auto:
		return recognised(ctx, ports, old, owners, r)
	case !check.Asks():
		return nil
	case check.Kind == ready.Exec:
		return []Asked{{Check: check, Port: ports[0]}}
	case check.Kind == ready.HTTP:
		q := Asked{Check: check}
		if slices.Contains(ports, check.Port()) {
			q.Port = check.Port()
		}
		return []Asked{q}
	}
	var qs []Asked
	for _, p := range ports {
		qs = append(qs, Asked{Check: check, Port: p})
	}
	return qs
}

// recognised returns a question for each port whose old server is known by the name of its
// process, and answers the question. A Multipath TCP listener is not asked, because not
// every backend can.
func recognised(ctx context.Context, ports []uint16, old []sockdiag.Listener, owners func([]sockdiag.Listener) (map[uint32]pidfd.OpenFile, error), r reach) (qs []Asked) {
	open, err := owners(old)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recogniseLimit)
	defer cancel()
	for _, p := range ports {
		l, ok := reachable(old, p)
		if !ok || l.MPTCP {
			continue
		}
		s, err := proc.Host.Stat(open[l.Inode].Pid)
		if err != nil {
			continue // its owner has just ended, or was not found
		}
		check, ok := ready.Of(s.Comm)
		if !ok {
			continue
		}
		if check.Ask(ctx, func(ctx context.Context) (net.Conn, error) { return r(ctx, l) }) == nil {
			qs = append(qs, Asked{check, p, true})
		}
	}
	return qs
}
