package protect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/linux/standby"
)

// Main is a keeper's whole life, in the process that StartKeeper made: it holds
// and releases as it is told, and releases at once when its starter is gone.
// args are those that StartKeeper added, backends what there is, best first. It
// returns the exit code.
func Main(args []string, backends []Backend, log *slog.Logger) int {
	locks := 0
	if len(args) == 1 {
		locks, _ = strconv.Atoi(args[0])
	}
	// The locks are never used: they are held by being open.
	standby.Settle(keeperFD+locks, nil)
	s := &server{backends: backends, log: log, requests: make(chan request), gone: make(chan struct{})}
	go s.listen()
	if err := s.run(); err != nil {
		log.Error("protect: " + err.Error())
		return 1
	}
	return 0
}

// server is the keeper's side. One goroutine does it all but reading.
type server struct {
	backends []Backend
	log      *slog.Logger
	requests chan request
	gone     chan struct{} // closed when the starter is gone
}

// listen reads until the starter is gone. The process ends with it.
func (s *server) listen() {
	defer close(s.gone)
	buf := make([]byte, maxMessage)
	for {
		n, err := unix.Read(keeperFD, buf)
		if err == unix.EINTR {
			continue
		}
		var r request
		if err != nil || n <= 0 || json.Unmarshal(buf[:n], &r) != nil {
			return
		}
		s.requests <- r
	}
}

// run answers until the starter is gone.
func (s *server) run() error {
	for {
		select {
		case <-s.gone:
			return nil
		case r := <-s.requests:
			if err := s.handle(r); err != nil {
				return err
			}
		}
	}
}

// handle does what is asked while nothing is held.
func (s *server) handle(r request) error {
	switch r.Op {
	case opProbe, opHold:
		if r.Spec == nil || len(r.Spec.Addresses) == 0 {
			return errors.New("a request without addresses")
		}
		sk, err := NewSockets(r.Spec.Addresses)
		if err != nil {
			return s.answer(answer{Op: r.Op, Error: err.Error()})
		}
		defer sk.Close()
		if r.Op == opProbe {
			return s.answer(answer{Op: opProbe, Probes: s.probe(sk.Target(*r.Spec))})
		}
		return s.hold(*r.Spec, sk)
	case opTidy:
		a := answer{Op: opTidy}
		if err := s.tidy(r.Left); err != nil {
			a.Error = err.Error()
		}
		return s.answer(a)
	case opExited, opRelease: // of a hold that has ended by itself
		return nil
	case opDrain:
		return s.answer(answer{Op: opDrain, Error: "nothing is held"})
	}
	return fmt.Errorf("unknown request %q", r.Op)
}

func (s *server) probe(t Target) []Refusal {
	var rs []Refusal
	for _, b := range s.backends {
		r := Refusal{Backend: b.Name()}
		if err := b.Probe(context.Background(), t); err != nil {
			r.Why = err.Error()
		}
		rs = append(rs, r)
	}
	return rs
}

// tidy undoes what a killed keeper left.
func (s *server) tidy(l *Left) error {
	if l == nil || len(l.Of) == 0 {
		return errors.New("a request without what was left")
	}
	sk, err := NewSockets(l.Of)
	if err != nil {
		return err
	}
	defer sk.Close()
	for _, b := range s.backends {
		if t, ok := b.(Tidier); ok && b.Name() == l.Backend {
			return t.Tidy(context.Background(), sk.Target(Spec{}), l.What)
		}
	}
	return fmt.Errorf("backend %q leaves nothing", l.Backend)
}

// hold is one hold, from its beginning to its end.
func (s *server) hold(spec Spec, sk *Sockets) error {
	s.sweep()
	start := time.Now()
	old, err := sk.Listeners()
	if err == nil && len(old) == 0 && !spec.Forwarded {
		err = ErrNothingListens
	}
	var h Held
	var began Began
	if err == nil {
		h, began, err = s.begin(spec, sk.Target(spec))
	}
	if err != nil {
		return s.answer(failure(opHold, err))
	}
	began.Took = time.Since(start)
	if l, ok := h.(Leaver); ok {
		if what := l.Leaves(); what != "" {
			began.Leaves = &Left{began.Backend, what, spec.Addresses}
		}
	}
	k := &keeping{
		server: s, sockets: sk, held: h, start: start, limit: spec.Limit,
		ready: newReadiness(old, start),
	}
	k.ready.elsewhere = spec.Forwarded
	err = s.answer(answer{Op: opHold, Began: &began})
	if err != nil {
		return errors.Join(err, h.Release(context.Background()))
	}
	return k.run()
}

// sweep lets go what dead protects of whatever port hold up.
func (s *server) sweep() {
	for _, b := range s.backends {
		if w, ok := b.(Sweeper); ok {
			if err := w.Sweep(); err != nil {
				s.log.Warn("protect: sweep up behind an earlier hold", "backend", b.Name(), "err", err)
			}
		}
	}
}

// begin tries the backends in their order.
func (s *server) begin(spec Spec, t Target) (Held, Began, error) {
	var began Began
	for _, b := range s.backends {
		if spec.Backend != "" && spec.Backend != Auto && spec.Backend != b.Name() {
			continue
		}
		if b.Name() == Migrate && spec.Backend != Migrate && !spec.Overlap {
			continue // it holds nothing; only for who knows that it will do
		}
		h, err := b.Hold(context.Background(), t)
		if err == nil {
			began.Backend = b.Name()
			return h, began, nil
		}
		began.Refused = append(began.Refused, Refusal{b.Name(), err.Error()})
	}
	err := ErrNoBackend
	for _, r := range began.Refused {
		err = fmt.Errorf("%w; %s: %s", err, r.Backend, r.Why)
	}
	return nil, began, err
}

func failure(o op, err error) answer {
	a := answer{Op: o, Error: err.Error()}
	switch {
	case errors.Is(err, ErrNothingListens):
		a.Kind = kindNothing
	case errors.Is(err, ErrNoBackend):
		a.Kind = kindNoBackend
	}
	return a
}

// answer sends; a starter that reads nothing must not hang the keeper.
func (s *server) answer(a answer) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	err = unix.Sendto(keeperFD, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	if err == unix.EPIPE || err == unix.ECONNRESET || err == unix.EAGAIN {
		return nil // it is gone, and that is noticed elsewhere, or hangs
	}
	return err
}
