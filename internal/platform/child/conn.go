package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrGone means that the process at the other end has closed the connection, usually
// because it has died.
var ErrGone = errors.New("the process is gone")

// Conn is a connection to a process that answers JSON messages with replies of type R.
// One goroutine at a time may call Send and Await. The other methods may be called from
// any goroutine.
type Conn[R any] struct {
	*net.UnixConn
	limit   int
	replies chan R
	ended   chan struct{}
}

// Handlers are called from the reading goroutine. Both are optional.
type Handlers[R any] struct {
	// Divert gets each reply first. It reports whether the reply is for Await, and
	// whether to read on.
	Divert func(R) (reply, more bool)
	// End is called when reading has ended, before Await returns ErrGone.
	End func()
}

// Talk reads replies of at most limit bytes from c, until EOF or a message that is not
// the JSON of an R.
func Talk[R any](c *net.UnixConn, limit int, h Handlers[R]) *Conn[R] {
	t := &Conn[R]{UnixConn: c, limit: limit, replies: make(chan R, 1), ended: make(chan struct{})}
	go t.read(h)
	return t
}

func (c *Conn[R]) read(h Handlers[R]) {
	defer close(c.ended)
	defer close(c.replies)
	if h.End != nil {
		defer h.End()
	}
	buf := make([]byte, c.limit)
	for {
		n, err := c.Read(buf)
		var r R
		if err != nil || n == 0 || json.Unmarshal(buf[:n], &r) != nil {
			return
		}
		if h.Divert != nil {
			reply, more := h.Divert(r)
			if !more {
				return
			}
			if !reply {
				continue
			}
		}
		select {
		case c.replies <- r:
		default: // a late reply: its Await has returned
		}
	}
}

// Ended is closed when reading has ended and Handlers.End has returned.
func (c *Conn[R]) Ended() <-chan struct{} { return c.ended }

// Send writes a message within a time limit. rights are control messages, such as
// descriptors (SCM_RIGHTS), or nil.
func (c *Conn[R]) Send(message any, rights []byte, limit time.Duration) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(b) > c.limit {
		return fmt.Errorf("a message of %d bytes is too long", len(b))
	}
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if len(rights) == 0 {
		_, err = c.Write(b)
	} else {
		_, _, err = c.WriteMsgUnix(b, rights, nil)
	}
	return err
}

// readDelay is the time that Await gives the reader after its deadline. When this process
// was stopped, or the whole machine, the deadline has passed before the reader can run.
const readDelay = 100 * time.Millisecond

// Await returns the next reply that match accepts. It drops other replies, which
// belong to earlier calls. The error is ErrGone or ctx's cause. A reply that arrived
// before ctx's deadline is returned after it, too.
func (c *Conn[R]) Await(ctx context.Context, match func(R) bool) (R, error) {
	done := ctx.Done()
	var over <-chan time.Time
	for {
		select {
		case r, ok := <-c.replies:
			if !ok {
				return r, ErrGone
			}
			if match(r) {
				return r, nil
			}
			continue
		case <-done:
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				done, over = nil, time.After(readDelay)
				continue
			}
		case <-over:
		}
		var none R
		return none, context.Cause(ctx)
	}
}
