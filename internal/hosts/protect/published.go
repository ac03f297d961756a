package protect

import (
	"context"
	"errors"
	"slices"
	"time"

	"holdfast/internal/hosts/protect/ready"
	"holdfast/internal/platform/linux/netns"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
)

// Published is a server in a container to which this network namespace forwards
// the ports of a Spec. The container may be recreated during the hold.
type Published struct {
	// Init returns the pid of the container's init, 0 if the container does not
	// run or does not exist. An error means that the engine does not answer.
	Init func(ctx context.Context) (int, error)
	// Inside are the ports that the server listens on in its own namespace.
	Inside []uint16
}

// instance is one run of a container: its init, by pid and start time.
type instance struct {
	pid   int
	start uint64
}

// lookAgain is the interval at which the engine is asked for the container.
const lookAgain = 10 * time.Millisecond

func (p *Published) instance(ctx context.Context) (instance, error) {
	pid, err := p.Init(ctx)
	if err != nil || pid == 0 {
		return instance{}, err
	}
	s, err := proc.Host.Stat(pid)
	if err != nil {
		return instance{}, nil // it has just ended
	}
	return instance{pid, s.Start}, nil
}

// sockets watches the inner ports of an instance.
func (p *Published) sockets(i instance) (*Sockets, error) {
	var as []Address
	for _, port := range p.Inside {
		as = append(as, Address{Port: port})
	}
	var s *Sockets
	err := netns.Do(netns.OfProcess(i.pid), func() (err error) {
		s, err = NewSockets(as)
		return err
	})
	return s, err
}

// drain is Sockets.Drain inside the container.
func (p *Published) drain(ctx context.Context, limit time.Duration, overlap bool) (Drained, error) {
	i, err := p.instance(ctx)
	if err != nil || i.pid == 0 {
		return Drained{}, err
	}
	s, err := p.sockets(i)
	if err != nil {
		return Drained{}, err
	}
	defer s.Close()
	return s.Drain(limit, overlap, ctx.Done())
}

// asker asks a new instance by check; nil: there is nothing to ask. It asks the old one to
// recognise its protocol. outside are the published ports.
func (p *Published) asker(ctx context.Context, check ready.Check, outside []uint16, old instance, progs *programs) (*asker, error) {
	s, err := p.sockets(old)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	ls, err := s.Listeners()
	if err != nil {
		return nil, err
	}
	asked := questions(ctx, check, s.ports(), ls, s.Target(Spec{}).Owners, reachIn(netns.OfProcess(old.pid)))
	if len(p.Inside) == 1 && check.Kind == ready.HTTP && slices.Contains(outside, check.Port()) {
		asked[0].Port = p.Inside[0]
	}
	a := newAsker(asked, nil, nil)
	if a != nil && progs != nil {
		a.program = progs.run
	}
	return a, nil
}

// await waits until another instance than old listens on all ports, and a is answered. Once
// the command has ended, it also returns when old has kept listening for settled.
func (p *Published) await(ctx context.Context, old instance, a *asker, exited <-chan struct{}) error {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	var quiet time.Time // since when the command has ended and old listens
	for {
		now, err := p.instance(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		well := err == nil && now.pid != 0 && p.listens(now)
		select {
		case <-exited:
			if quiet.IsZero() || now != old || !well {
				quiet = time.Now()
			}
		default:
		}
		if well && (now != old || !quiet.IsZero() && time.Since(quiet) > settled) && p.ready(ctx, now, a) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ready asks an instance whether it is ready.
func (p *Published) ready(ctx context.Context, i instance, a *asker) bool {
	if a == nil {
		return true
	}
	s, err := p.sockets(i)
	if err != nil {
		return false
	}
	defer s.Close()
	ls, err := s.Listeners()
	if err != nil {
		return false
	}
	a.reach = reachIn(netns.OfProcess(i.pid))
	a.try(ls, time.Now())
	if !a.open {
		return false // it is too early
	}
	select {
	case r := <-a.replies():
		return a.heard(r, time.Now())
	case <-ctx.Done():
		return false
	}
}

// listens reports whether an instance listens on all ports.
func (p *Published) listens(i instance) bool {
	s, err := p.sockets(i)
	if err != nil {
		return false
	}
	defer s.Close()
	ls, err := s.Listeners()
	return err == nil && len(portsOf(ls)) == len(p.Inside)
}

func portsOf(ls []sockdiag.Listener) map[uint16]bool {
	m := make(map[uint16]bool)
	for _, l := range ls {
		m[l.Addr.Port()] = true
	}
	return m
}

// errNotRunning reports that the container to protect does not run.
var errNotRunning = errors.New("the container does not run")
