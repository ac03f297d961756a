package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
)

// fault is a fault of a node's connections to others. It starts when one of them has
// carried a number of bytes, in both directions together.
type fault struct {
	how   string // one of the constants below
	after int64  // bytes
	times int    // number of connections; 0 means all
}

const (
	breaks  = "breaks"              // both ends see a reset
	hole    = "black hole"          // no byte passes, and no end is notified
	deaf    = "answer lost"         // all bytes arrive, and no answer comes back
	crawls  = "crawls"              // every piece takes nearly the idle timeout
	crawled = imageIdleTimeout / 10 // for each piece
)

// faulty applies a fault to the node's connections.
func (x *node) faulty(f fault) {
	var conns atomic.Int32
	x.peers = newPeers(func(ctx context.Context, n holdfast.NodeID, addr string) (net.Conn, error) {
		c, err := x.deps.Dial(ctx, n, addr)
		if nth := int(conns.Add(1)); err != nil || f.times > 0 && nth > f.times {
			return c, err
		}
		return &faultyConn{Conn: c, fault: f, closed: make(chan struct{})}, nil
	}, x.deps.Metrics)
	x.w.t.Cleanup(x.peers.close)
}

type faultyConn struct {
	net.Conn
	fault
	passed atomic.Int64
	once   sync.Once
	closed chan struct{}
}

func (c *faultyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// strike starts the fault if it is due.
func (c *faultyConn) strike() error {
	if c.passed.Load() < c.after {
		return nil
	}
	switch c.how {
	case breaks:
		c.Close()
		return net.ErrClosed
	case hole:
		<-c.closed
		return net.ErrClosed
	case crawls:
		select {
		case <-time.After(crawled):
		case <-c.closed:
		}
	}
	return nil
}

func (c *faultyConn) Write(b []byte) (int, error) {
	if err := c.strike(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	c.passed.Add(int64(n))
	return n, err
}

func (c *faultyConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		c.passed.Add(int64(n))
		if struck := c.strike(); struck != nil {
			return 0, struck
		}
		if c.how != deaf || err != nil {
			return n, err
		}
	}
}

// someImage is longer than all buffers between two nodes.
func someImage(t *testing.T) []byte {
	image := make([]byte, 256<<10)
	_, err := rand.Read(image)
	must(t, err)
	return image
}

// TestSendImageWithNetworkFaults: an image arrives completely or not at all, and neither
// side waits long on a connection without progress.
func TestSendImageWithNetworkFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault
		arrives bool
		says    error
		calls   int // of write
	}{
		"whole":              {fault{how: breaks, after: 1 << 30}, true, nil, 1},
		"broken once":        {fault{how: breaks, after: 100_000, times: 1}, true, nil, 2},
		"broken at once":     {fault{how: breaks, times: 1}, true, nil, 2},
		"broken":             {fault{how: breaks, after: 100_000}, false, errUnreachable, 2},
		"black hole":         {fault{how: hole, after: 100_000}, false, errIdleTimeout, 1},
		"the answer is lost": {fault{how: deaf}, true, errIdleTimeout, 1},
		"slow":               {fault{how: crawls}, true, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, func(t *testing.T, w *world) {
				a, b := w.nodes[0], w.nodes[1]
				a.faulty(c.fault)
				image := someImage(t)
				var tries sync.WaitGroup
				var whole atomic.Int32
				b.deps.ReceiveImage = func(_ context.Context, r io.Reader, expected func(holdfast.SessionKey, holdfast.Epoch) error) error {
					tries.Add(1)
					defer tries.Done()
					if err := errors.Join(expected(key, 7), expected(key, 7)); err != nil {
						t.Error(err)
					}
					got, err := io.ReadAll(r)
					if err == nil && bytes.Equal(got, image) {
						whole.Add(1)
					}
					return err
				}
				s := []Departing{{Key: key, Epoch: 7}}
				a.setSuccessor(b.record, s)
				b.next.add(a.id, s)
				calls, begun := 0, time.Now()
				err := a.SendImage(t.Context(), key, 7, func(w io.Writer) error {
					calls++
					_, err := io.Copy(w, bytes.NewReader(image))
					return err
				})
				took := time.Since(begun)
				synctest.Wait()
				time.Sleep(imageIdleTimeout + time.Second)
				tries.Wait()
				if !errors.Is(err, c.says) || (err == nil) != (c.says == nil) || calls != c.calls {
					t.Errorf("error %v, want %v, after %d calls", err, c.says, calls)
				}
				if (whole.Load() == 1) != c.arrives {
					t.Errorf("%d images arrived completely", whole.Load())
				}
				if (took > imageIdleTimeout) != (c.how == crawls) {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestSilentSender: a node deletes a partial image soon after its sender stops
// sending. It also does not wait for a node that asks for an image and does not read
// it.
func TestSilentSender(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		ended := make(chan error, 1)
		b.deps.ReceiveImage = func(_ context.Context, r io.Reader, _ func(holdfast.SessionKey, holdfast.Epoch) error) error {
			_, err := io.Copy(io.Discard, r)
			ended <- err
			return err
		}
		b.deps.GiveImage = func(_ context.Context, _ holdfast.SessionKey, _, _ holdfast.Epoch, w io.Writer) error {
			_, err := w.Write(someImage(t))
			ended <- err
			return err
		}
		o, err := w.store.Claim(t.Context(), holdfast.Owner{Key: key, Node: a.id, State: holdfast.Claimed}, a.lease)
		must(t, err)
		question := fmt.Sprintf(`{"key":%q,"epoch":%d,"next":%d}`, key, o.Epoch-1, o.Epoch)
		for path, body := range map[string]string{
			pathImage: "Content-Length: 100000\r\n\r\nonly the beginning",
			pathTake:  fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(question), question),
		} {
			c, err := a.deps.Dial(t.Context(), b.id, b.record.PeerAddress)
			must(t, err)
			begun := time.Now()
			_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: b\r\n%s", path, body)
			must(t, err)
			if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != imageIdleTimeout {
				t.Errorf("%s: %v after %v", path, err, time.Since(begun))
			}
			c.Close()
		}
	})
}

// TestImageThatCannotBeRead: the sender does not repeat the transfer of an image that
// it cannot read.
func TestImageThatCannotBeRead(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		b.deps.ReceiveImage = func(_ context.Context, r io.Reader, _ func(holdfast.SessionKey, holdfast.Epoch) error) error {
			_, err := io.Copy(io.Discard, r)
			return err
		}
		a.setSuccessor(b.record, []Departing{{Key: key, Epoch: 7}})
		calls, torn := 0, errors.New("torn")
		err := a.SendImage(t.Context(), key, 7, func(w io.Writer) error {
			calls++
			_, _ = w.Write(make([]byte, 100_000))
			return torn
		})
		if !errors.Is(err, torn) || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
		if err := a.SendImage(t.Context(), key, 8, nil); !errors.Is(err, errNoSuccessor) {
			t.Errorf("another epoch: %v", err)
		}
	})
}

// TestTakeImageWithNetworkFaults: a node gives an image away once, even if the transfer
// fails.
func TestTakeImageWithNetworkFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault
		want  error // nil: the image arrives
		given int
	}{
		"whole":          {fault{how: breaks, after: 1 << 30}, nil, 1},
		"broken at once": {fault{how: breaks, times: 1}, nil, 1},
		"broken":         {fault{how: breaks, after: 100_000}, net.ErrClosed, 1},
		"black hole":     {fault{how: hole, after: 100_000}, errIdleTimeout, 1},
		"no answer":      {fault{how: deaf}, errIdleTimeout, 1},
		"slow":           {fault{how: crawls}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, func(t *testing.T, w *world) {
				a, b := w.nodes[0], w.nodes[1]
				a.faulty(c.fault)
				image := someImage(t)
				var given atomic.Int32
				ended := make(chan error, 2)
				b.deps.GiveImage = func(_ context.Context, _ holdfast.SessionKey, _, _ holdfast.Epoch, w io.Writer) error {
					if given.Add(1) > 1 {
						return holdfast.ErrNotFound
					}
					_, err := io.Copy(w, struct{ io.Reader }{bytes.NewReader(image)}) // piece by piece
					ended <- err
					return err
				}
				o, err := w.store.Claim(t.Context(), holdfast.Owner{Key: key, Node: a.id, State: holdfast.Claimed}, a.lease)
				must(t, err)
				var got []byte
				begun := time.Now()
				err = a.TakeImage(t.Context(), holdfast.Suspended{Node: b.id, Key: key, Epoch: o.Epoch - 1}, o.Epoch, func(r io.Reader) (err error) {
					got, err = io.ReadAll(r)
					return err
				})
				took := time.Since(begun)
				if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || (err == nil) != bytes.Equal(got, image) {
					t.Errorf("error %v, want %v, after %d bytes", err, c.want, len(got))
				}
				<-ended
				if int(given.Load()) != c.given {
					t.Errorf("the image was given away %d times", given.Load())
				}
				if (took > imageIdleTimeout) != (c.how == crawls) {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestOnlyTheOwnerTakesAnImage: only the session's owner gets the image of its previous epoch.
func TestOnlyTheOwnerTakesAnImage(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		b.deps.GiveImage = func(context.Context, holdfast.SessionKey, holdfast.Epoch, holdfast.Epoch, io.Writer) error {
			t.Error("the image was given away")
			return nil
		}
		err := a.TakeImage(t.Context(), holdfast.Suspended{Node: b.id, Key: key, Epoch: 1}, 2, func(io.Reader) error { return nil })
		if err == nil || errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("without a claim: %v", err)
		}
		if err := a.TakeImage(t.Context(), holdfast.Suspended{Node: "unknown", Key: key, Epoch: 1}, 2, nil); !errors.Is(err, holdfast.ErrNotFound) {
			t.Error(fmt.Errorf("from an unknown node: %w", err))
		}
	})
}

// Another Prepare leaves the successor of a session that moves meanwhile.
func TestSuccessorOfAMoveStays(t *testing.T) {
	f := &Fleet{successors: map[holdfast.SessionKey]successor{}}
	a, b := []Departing{{Key: "a", Epoch: 7}}, []Departing{{Key: "b", Epoch: 8}}
	f.setSuccessor(holdfast.Node{ID: "n2"}, a)
	f.clearSuccessors(b)
	if err := f.CanSend("a", 7); err != nil {
		t.Error(err)
	}
	f.clearSuccessors(a)
	if err := f.CanSend("a", 7); err == nil {
		t.Error("a session that is prepared again has its former successor")
	}
	f.successors["a"] = successor{7, holdfast.Node{ID: "n2"}, time.Now().Add(-2 * successorLife)}
	f.setSuccessor(holdfast.Node{ID: "n3"}, b)
	if len(f.successors) != 1 {
		t.Errorf("old successors stay: %+v", f.successors)
	}
}
