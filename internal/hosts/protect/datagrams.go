package protect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"holdfast/internal/platform/linux/sockdiag"
)

// Flows says whether the datagrams of UDP servers are held too, and what a known flow is:
// during an overlap its datagrams go on to the old server.
type Flows string

// The values of Flows. A flow is a pair of addresses, or of QUIC a connection. AutoFlows
// asks the old server whether it speaks QUIC.
const (
	NoDatagrams  Flows = "none"
	AutoFlows    Flows = "auto"
	ByAddress    Flows = "flow"
	ByConnection Flows = "quic"
)

// AllFlows returns all values of Flows.
func AllFlows() []Flows { return []Flows{NoDatagrams, AutoFlows, ByAddress, ByConnection} }

// DatagramStats are the figures of held datagrams.
type DatagramStats struct {
	Stats
	// Lost counts those that found no room, or could not be sent again.
	Lost int `json:"lost,omitempty"`
	// Flows is how flows were told apart, as recognised.
	Flows Flows `json:"flows"`
	// Stays says that known flows go on to the old server, which runs beside the new one.
	Stays bool `json:"stays,omitempty"`
}

// HeldDatagrams is the Held of the backend Steer, which holds datagrams.
type HeldDatagrams interface {
	Held
	// Datagrams returns what became of them, after the release.
	Datagrams() DatagramStats
	// Handshakes counts the connections of QUIC that the old server has not established.
	Handshakes() int
	// Linger returns a function that keeps known flows with the old server until that has
	// ended, for at most Target.For; nil: none are kept. It ends with its process.
	Linger() func()
}

// both is a hold of connections and of datagrams.
type both struct {
	Held
	HeldDatagrams
}

func (b both) Stats() Stats    { return b.Held.Stats() }
func (b both) Residue() string { return b.Held.Residue() }

func (b both) Admit(from netip.AddrPort, to sockdiag.Listener) (end func(), err error) {
	return b.Held.Admit(from, to)
}

func (b both) Release(ctx context.Context) (err error) {
	var datagrams sync.WaitGroup
	var of error
	datagrams.Go(func() { of = b.HeldDatagrams.Release(ctx) })
	err = b.Held.Release(ctx)
	datagrams.Wait()
	return errors.Join(err, of)
}

// beginAll begins the hold of datagrams, if they are to be held, and that of connections. One
// of them is enough if the server has no socket for the other.
func (s *server) beginAll(spec Spec, sk *Sockets) (Held, Began, error) {
	t := sk.Target(spec)
	if !sk.udp {
		return s.begin(spec, t)
	}
	ls, err := t.Listeners()
	if err != nil {
		return nil, Began{}, err
	}
	d, err := s.holdDatagrams(spec, sk)
	if err != nil && (!errors.Is(err, ErrNothingListens) || len(ls) == 0) {
		return nil, Began{}, err
	}
	if d == nil {
		return s.begin(spec, t)
	}
	if len(ls) == 0 {
		return d, Began{Backend: Steer}, nil
	}
	h, began, err := s.begin(spec, t)
	if err != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return nil, began, errors.Join(err, d.Release(ctx))
	}
	return both{h, d}, began, nil
}

// connections returns the listeners for connections.
func connections(ls []sockdiag.Listener) []sockdiag.Listener {
	return slices.DeleteFunc(slices.Clone(ls), func(l sockdiag.Listener) bool { return l.UDP })
}

func (s *server) holdDatagrams(spec Spec, sk *Sockets) (HeldDatagrams, error) {
	t := sk.Target(spec)
	t.Listeners = sk.receivers
	t.Warn = func(err error) { s.log.Warn("protect: " + err.Error()) }
	i := slices.IndexFunc(s.backends, func(b Backend) bool { return b.Name() == Steer })
	if i < 0 {
		return nil, fmt.Errorf("%w: there is none for datagrams", ErrNoBackend)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-s.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	h, err := s.backends[i].Hold(ctx, t)
	if err != nil {
		if !errors.Is(err, ErrNothingListens) {
			err = fmt.Errorf("%w for datagrams: %w", ErrNoBackend, err)
		}
		return nil, err
	}
	d, ok := h.(HeldDatagrams)
	if !ok {
		return nil, errors.Join(fmt.Errorf("backend %s holds no datagrams", Steer), h.Release(ctx))
	}
	return d, nil
}
