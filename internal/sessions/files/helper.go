package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"holdfast"
	"holdfast/internal/platform/frame"
)

const (
	startTime   = 30 * time.Second // until Main answers
	idleTime    = 5 * time.Second  // how long Main waits for another call
	restoreEnds = 2 * time.Second  // see errNotRun
)

// errNotRun means that the container does not run Main. gVisor may refuse commands, with
// this exit code, for a moment after the programs of a restored container have gone on.
var errNotRun error = &Error{"the container does not run the program that reads and writes its files", holdfast.ErrBusy}

const cannotRun = 126

// helper is Main in a container. It does one call at a time. Of a session's calls in a row,
// only the first one waits for its start.
type helper struct {
	init  int // the sandbox's pid
	conn  *frame.Conn
	clean bool            // the last call has left nothing behind
	own   context.Context // of the command; its cause is why it was ended
	stop  func(error)
	ended chan struct{}
	timer *time.Timer // while it is idle
}

// helper returns an idle helper of a session, or starts one.
func (f *Files) helper(ctx context.Context, key holdfast.SessionKey, place Place) (*helper, error) {
	f.mu.Lock()
	h := f.idle[key]
	delete(f.idle, key)
	f.mu.Unlock()
	if h != nil {
		if h.timer.Stop() && h.init == place.PID && !h.over() {
			return h, nil
		}
		h.end(errNotRun)
	}
	for begun := time.Now(); ; {
		h, err := start(ctx, place)
		if !errors.Is(err, errNotRun) || time.Since(begun) > restoreEnds || ctx.Err() != nil {
			return h, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// keep makes a helper idle, or ends it.
func (f *Files) keep(key holdfast.SessionKey, h *helper) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !h.clean || h.over() || f.idle[key] != nil || len(f.idle) >= maxOfNode {
		go h.end(errNotRun)
		return
	}
	f.idle[key] = h
	h.timer = time.AfterFunc(idleTime, func() {
		f.mu.Lock()
		if f.idle[key] == h {
			delete(f.idle, key)
		}
		f.mu.Unlock()
		h.end(errNotRun)
	})
}

// start runs Main in a container.
func start(ctx context.Context, place Place) (*helper, error) {
	own, cancel := context.WithCancelCause(context.Background())
	in, toMain := io.Pipe()
	fromMain, out := io.Pipe()
	h := &helper{init: place.PID, own: own, conn: frame.NewConn(fromMain, toMain), ended: make(chan struct{})}
	h.stop = func(err error) {
		toMain.CloseWithError(err)
		fromMain.CloseWithError(err)
		cancel(err)
	}
	go func() {
		defer close(h.ended)
		code, err := place.Exec(own, in, out)
		switch {
		case err != nil:
		case code == cannotRun:
			err = errNotRun
		case code != 0:
			err = holdfast.WithHint(&Error{fmt.Sprintf("the program for files ended in the container with exit code %d", code), holdfast.ErrBusy}, "the container may lack memory")
		}
		err = cmp.Or(err, errStrange)
		in.CloseWithError(err)
		out.CloseWithError(err)
	}()
	defer context.AfterFunc(ctx, func() { h.end(context.Cause(ctx)) })()
	late := time.AfterFunc(startTime, func() { h.end(errNotRun) })
	defer late.Stop()
	if k, _, err := h.conn.Read(); err != nil || k != frame.Ping {
		err = cmp.Or(context.Cause(own), err, errStrange)
		h.end(err)
		return nil, err
	}
	return h, nil
}

// end ends the helper, and returns when its command is given up.
func (h *helper) end(err error) {
	h.stop(err)
	<-h.ended
}

func (h *helper) over() bool {
	select {
	case <-h.ended:
		return true
	default:
		return false
	}
}
