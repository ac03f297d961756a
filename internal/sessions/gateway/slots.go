package gateway

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/platform/tasks"
)

var (
	errSlots       = errors.New("too many requests are in progress")
	errClientSlots = errors.New("too many requests of this address are in progress")
)

// slots limits the requests in progress, per client and in total. Requests on one
// HTTP/2 connection, upgraded connections and event streams count alike. Any goroutine
// may call its methods.
type slots struct {
	perClient, total int
	waiting          atomic.Int64 // see slotWaiting

	mu      sync.Mutex
	taken   int
	clients map[netip.Addr]int // over 0, so the map has at most taken entries
}

func newSlots(perClient, total int) *slots {
	return &slots{perClient: perClient, total: total, clients: map[netip.Addr]int{}}
}

// take takes a slot for a request of the client (see clientOf).
func (s *slots) take(client netip.Addr) (slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.taken >= s.total:
		return slot{}, errSlots
	case s.clients[client] >= s.perClient:
		return slot{}, errClientSlots
	}
	s.taken++
	s.clients[client]++
	return slot{s, client}, nil
}

const (
	// slotWait bounds how long a request above the limits waits for a slot. A client may
	// send a request when its last one is answered, or when it has reset an HTTP/2
	// stream. The slot of that one is free shortly after.
	slotWait = time.Second
	// slotWaiting limits the requests that wait for a slot.
	slotWaiting = 1024
)

// wait takes a slot, and waits for one up to slotWait or until ctx is done.
func (s *slots) wait(ctx context.Context, client netip.Addr) (slot, error) {
	got, err := s.take(client)
	if err == nil {
		return got, nil
	}
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > slotWaiting {
		return slot{}, err
	}
	for pause := time.Millisecond; err != nil && pause < slotWait; pause *= 2 {
		if tasks.Sleep(ctx, pause) != nil {
			return slot{}, err
		}
		got, err = s.take(client)
	}
	return got, err
}

// slot is the place of one request. Only one goroutine may use it at a time.
type slot struct {
	of     *slots // nil: there is none, or it was given back or away
	client netip.Addr
}

// free gives the slot back. It may be called again.
func (s *slot) free() {
	all := s.of
	if all == nil {
		return
	}
	s.of = nil
	all.mu.Lock()
	defer all.mu.Unlock()
	all.taken--
	if all.clients[s.client]--; all.clients[s.client] == 0 {
		delete(all.clients, s.client)
	}
}

// giveAway returns the slot for a new owner; s is empty then. s may be nil.
func (s *slot) giveAway() *slot {
	if s == nil {
		return &slot{}
	}
	given := *s
	s.of = nil
	return &given
}
