package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/frame"
)

// attach takes over the connection and joins a caller to a command. An error means that
// it has written nothing.
func (k *keeper) attach(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	var q Attach
	if err := decode(w, r, &q); err != nil {
		return err
	}
	c, err := k.table.find(keyOf(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	from, err := c.position(q.Offset)
	if err != nil {
		return err
	}
	leave, err := c.enter()
	if err != nil {
		return err
	}
	defer leave()
	var held *reader
	if q.Hold {
		held = c.out.hold(from)
		defer c.out.release(held)
	}
	c.out.release(c.takeFirst())
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, frame.Accept); err == nil {
		c.join(ctx, conn, frame.NewConn(rw.Reader, conn), from, held)
	}
	return nil
}

// position is the offset at which a caller begins. ErrOffset.
func (c *command) position(offset int64) (int64, error) {
	_, all := c.out.count()
	switch {
	case offset > all:
		return 0, fmt.Errorf("%w: the output has %d bytes, the offset is %d", ErrOffset, all, offset)
	case offset < 0:
		return max(0, all+offset), nil
	}
	return offset, nil
}

// join sends the command's output to a caller, and the caller's input to the command,
// until the command has ended or the caller has gone.
func (c *command) join(ctx context.Context, conn net.Conn, f *frame.Conn, from int64, held *reader) {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() {
		c.take(ctx, f)
		cancel()
	})
	beside.Go(func() { f.KeepAlive(ctx, pingEvery, cancel) })
	// Ends reads and writes of a caller that neither reads nor leaves.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now().Add(endLimit)) })
	defer stop()
	if c.send(ctx, f, from, held) == nil {
		// Close after the caller: it might lose the last frames otherwise.
		_ = conn.SetReadDeadline(time.Now().Add(endLimit))
		<-ctx.Done()
	}
	cancel()
	beside.Wait()
}

// take reads the caller's frames until the caller has gone.
func (c *command) take(ctx context.Context, f *frame.Conn) {
	for {
		kind, p, err := f.Read()
		if err != nil {
			return
		}
		switch {
		case kind == frame.Stdin && c.in != nil && len(p) == 0:
			c.in.end()
		case kind == frame.Stdin && c.in != nil:
			c.in.write(ctx, p)
		case kind == frame.Resize:
			var s engine.Size
			if json.Unmarshal(p, &s) == nil && c.info.TTY && s.Rows > 0 && s.Cols > 0 {
				c.resize(s)
				c.has.await(ctx, s) // the input that follows is for this size
			}
		}
	}
}

// takeFirst returns the place that was kept for the first caller, once.
func (c *command) takeFirst() *reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.first
	c.first = nil
	return x
}

// send sends the output from an offset on, and the exit.
func (c *command) send(ctx context.Context, f *frame.Conn, from int64, held *reader) error {
	for first := true; ; first = false {
		p := c.out.read(from)
		if first || p.at > from {
			if err := f.WriteJSON(frame.Offset, frame.Position{Offset: p.at, Lost: p.at - from}); err != nil {
				return err
			}
		}
		from = p.at + int64(len(p.data))
		switch {
		case len(p.data) > 0:
			if err := f.Write(p.kind, p.data); err != nil {
				return err
			}
			c.out.advance(held, from)
		case p.over:
			return f.WriteJSON(frame.Exit, c.exit())
		default:
			select {
			case <-p.more:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// exit is how a command that has ended did so.
func (c *command) exit() exit {
	s := c.show()
	e := exit{ExitCode: s.ExitCode}
	if s.Error != "" {
		e.Error = &exitError{Code: "internal", Message: "command " + s.ID + ": " + s.Error}
	}
	return e
}
