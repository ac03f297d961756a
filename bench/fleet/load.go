package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/bench/rig"
)

const (
	// beyondPark is the time that a client waits beyond the gateway's park time. A
	// client without an answer by then has lost its gateway.
	beyondPark = 15 * time.Second
	// maxPending bounds the clients that are connecting at once.
	maxPending = 5000
	// A fifth of the arriving clients stay connected for a while. The others leave
	// after the first answer.
	stayShare = 0.2
	stayTime  = 2 * time.Second
	// A client sends a message on its connection at this interval, and treats a
	// connection that does not answer as dead.
	wordEvery   = 2 * time.Second
	wordTimeout = 3 * time.Second
	// retryPause is the pause of a refused client before its next try.
	retryPause = 250 * time.Millisecond
)

// attempt is one connect of a client: from its intended start to the first answer over
// the WebSocket, or to the error.
type attempt struct {
	begin, end time.Duration // CLOCK_BOOTTIME; begin is the intended start
	reason     string        // "" for a success
}

// load is the load of clients. Some hold a connection to one session each and connect
// again when it ends. Others arrive at a steady rate (open loop).
type load struct {
	nodes []*node
	keys  []holdfast.SessionKey
	limit time.Duration // the longest that a client waits
	http  *http.Client

	work sync.WaitGroup
	mu   sync.Mutex
	past []attempt
	cuts int // connections that the other side closed, also before the first answer
	busy int // clients that could not be started because too many were pending

	pending    chan struct{}
	connecting atomic.Int64
}

func newLoad(nodes []*node, keys []holdfast.SessionKey, limit time.Duration) *load {
	return &load{
		nodes: nodes, keys: keys, limit: limit, pending: make(chan struct{}, maxPending),
		// Each client has its own connection.
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// hold keeps a client connected to each session until ctx is done. It returns when all
// have connected once. The measurement begins then.
func (l *load) hold(ctx context.Context) error {
	connected := make(chan struct{}, len(l.keys))
	for _, key := range l.keys {
		l.work.Go(func() { l.holder(ctx, key, connected) })
	}
	limit := time.After(rig.Patience + time.Duration(len(l.keys))*time.Second)
	for range l.keys {
		select {
		case <-connected:
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return errors.New("not every session had a connected client before the measurement")
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.past, l.cuts = nil, 0
	return nil
}

// holder is a client that stays connected. It connects again at once when its
// connection is closed, and after retryPause when it is refused.
func (l *load) holder(ctx context.Context, key holdfast.SessionKey, connected chan<- struct{}) {
	for ctx.Err() == nil {
		c, err := l.connect(ctx, key, now())
		if err != nil {
			sleep(ctx, retryPause)
			continue
		}
		if connected != nil {
			connected <- struct{}{}
			connected = nil
		}
		for say(ctx, c, wordTimeout) == nil && sleep(ctx, wordEvery) {
		}
		c.CloseNow()
		if ctx.Err() == nil {
			l.note(func() { l.cuts++ })
		}
	}
}

// arrive starts clients at the rate (1/s) until ctx is done. The end of life ends the
// clients that are still connecting.
func (l *load) arrive(ctx, life context.Context, rate float64, random *rand.Rand) {
	start, between := now(), time.Duration(float64(time.Second)/rate)
	for i := 1; ; i++ {
		intended := start + time.Duration(i)*between
		if !sleep(ctx, intended-now()) {
			return
		}
		key, stay := l.keys[random.IntN(len(l.keys))], random.Float64() < stayShare
		select {
		case l.pending <- struct{}{}:
		default:
			l.note(func() { l.busy++ })
			continue
		}
		l.work.Go(func() {
			defer func() { <-l.pending }()
			c, err := l.connect(life, key, intended)
			if err != nil {
				return
			}
			if stay {
				sleep(ctx, stayTime)
			}
			c.CloseNow()
		})
	}
}

// connectAll connects a client to each session, until each was answered.
func (l *load) connectAll(ctx context.Context) error {
	var g errgroup.Group
	for _, key := range l.keys {
		g.Go(func() error {
			for {
				c, err := l.connect(ctx, key, now())
				if err == nil {
					c.CloseNow()
					return nil
				}
				if !sleep(ctx, retryPause) {
					return fmt.Errorf("session %s is not served: %w", key, err)
				}
			}
		})
	}
	return g.Wait()
}

// settle waits until no client is connecting, at most as long as a client waits.
func (l *load) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	for l.connecting.Load() > 0 && ctx.Err() == nil {
		sleep(ctx, 10*time.Millisecond)
	}
}

// wait returns when no client is left.
func (l *load) wait() {
	l.work.Wait()
	l.http.CloseIdleConnections()
}

// connect connects a client. A connection that ends before the first answer is not a
// failure: the client tries again, as a web page would, and its wait continues.
func (l *load) connect(ctx context.Context, key holdfast.SessionKey, intended time.Duration) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	l.connecting.Add(1)
	defer l.connecting.Add(-1)
	for {
		c, err := l.dial(ctx, key)
		if err == nil {
			if err = say(ctx, c, l.limit); err == nil {
				l.record(attempt{begin: intended, end: now()})
				return c, nil
			}
			c.CloseNow()
			l.note(func() { l.cuts++ })
			if ctx.Err() == nil {
				continue
			}
		}
		if !errors.Is(ctx.Err(), context.Canceled) { // otherwise the bench has ended
			l.record(attempt{begin: intended, end: now(), reason: reasonOf(err)})
		}
		return nil, err
	}
}

// dial opens a WebSocket through a gateway that is up.
func (l *load) dial(ctx context.Context, key holdfast.SessionKey) (*websocket.Conn, error) {
	m := l.pick(ctx)
	if m == nil {
		return nil, ctx.Err()
	}
	defer m.visitors.Add(-1)
	c, res, err := websocket.Dial(ctx, fmt.Sprintf("ws://%s/s/%s/ws", m.gateway, key), &websocket.DialOptions{
		HTTPClient: l.http, HTTPHeader: http.Header{"Accept": {"application/json"}},
	})
	if err != nil && res != nil {
		return nil, refusal(res)
	}
	return c, err
}

// pick chooses a gateway and counts the client as its visitor. It waits while no
// gateway is up, and returns nil when ctx is done.
func (l *load) pick(ctx context.Context) *node {
	for ctx.Err() == nil {
		i := rand.IntN(len(l.nodes))
		for k := range l.nodes {
			m := l.nodes[(i+k)%len(l.nodes)]
			m.visitors.Add(1)
			if m.live.Load() {
				return m
			}
			m.visitors.Add(-1)
		}
		sleep(ctx, 5*time.Millisecond)
	}
	return nil
}

// say sends a message and waits for its echo.
func say(ctx context.Context, c *websocket.Conn, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		return err
	}
	_, _, err := c.Read(ctx)
	return err
}

// refusedError is a gateway's answer other than a WebSocket.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return e.reason }

func refusal(res *http.Response) error {
	var problem struct {
		Reason string `json:"reason"`
	}
	// The library keeps the first KiB of the body.
	if err := json.NewDecoder(res.Body).Decode(&problem); err != nil || problem.Reason == "" {
		problem.Reason = "unexplained"
	}
	return &refusedError{fmt.Sprintf("%d %s", res.StatusCode, problem.Reason)}
}

// reasonOf classifies an error.
func reasonOf(err error) string {
	var refused *refusedError
	var timeout net.Error
	switch {
	case errors.As(err, &refused):
		return refused.reason
	case errors.Is(err, syscall.ECONNREFUSED):
		return "gateway is gone"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE):
		return "gateway went away"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer"
	}
	return err.Error()
}

func (l *load) record(a attempt) { l.note(func() { l.past = append(l.past, a) }) }

func (l *load) note(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// sleep waits; false when ctx was done first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
