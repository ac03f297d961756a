package restarts

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// askLimit is how long a client waits for its answer.
const askLimit = 2 * time.Minute

// clients are the bench's own clients: each makes a connection, asks one question in the
// server's protocol, and ends. They are due at fixed times, whatever became of those before
// (an open loop).
type clients struct {
	cancel context.CancelFunc
	due    sync.WaitGroup // the loop
	all    sync.WaitGroup
	mu     sync.Mutex
	result Clients
}

// Clients is what became of the bench's own clients.
type Clients struct {
	Asked  int `json:"asked"`
	Failed int `json:"failed"`
	// Why counts the failed ones by reason.
	Why map[string]int `json:"why,omitempty"`
	// Longest is the longest time from when a client was due to its answer, in milliseconds.
	Longest float64 `json:"longest_ms"`
}

func (c *Clients) add(o Clients) {
	c.Asked, c.Failed, c.Longest = c.Asked+o.Asked, c.Failed+o.Failed, max(c.Longest, o.Longest)
	for why, n := range o.Why {
		if c.Why == nil {
			c.Why = map[string]int{}
		}
		c.Why[why] += n
	}
}

// startClients begins rate clients per second.
func startClients(ctx context.Context, rate float64, ask func(context.Context) error) *clients {
	c := &clients{}
	loop, cancel := context.WithCancel(ctx)
	c.cancel = cancel
	c.due.Go(func() {
		tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
		defer tick.Stop()
		for {
			select {
			case <-loop.Done():
				return
			case due := <-tick.C:
				c.all.Go(func() { c.one(ctx, due, ask) })
			}
		}
	})
	return c
}

func (c *clients) one(ctx context.Context, due time.Time, ask func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	err := ask(ctx)
	r := Clients{Asked: 1}
	if err != nil {
		r.Failed, r.Why = 1, map[string]int{reason(err): 1}
	} else {
		r.Longest = float64(time.Since(due).Microseconds()) / 1000
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.result.add(r)
}

// end begins no more clients, and waits for the answers of the last ones.
func (c *clients) end() Clients {
	c.cancel()
	c.due.Wait()
	c.all.Wait()
	return c.result
}

// reason is the cause of a missing answer.
func reason(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return "reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed without an answer"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	return "answered with an error"
}
