package gateway

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"
)

// wire records writes.
type wire struct {
	net.Conn
	writes chan string
	fails  error
}

func (w *wire) Write(b []byte) (int, error) {
	w.writes <- string(b)
	return len(b), w.fails
}

func (w *wire) sent() (all []string) {
	for len(w.writes) > 0 {
		all = append(all, <-w.writes)
	}
	return all
}

// An announced pair of writes is one write. A write that is announced and not followed by another one
// is sent by itself, soon.
func TestJoinedWrites(t *testing.T) {
	w := &wire{writes: make(chan string, 10)}
	j := &joinedConn{Conn: w}
	write := func(text string) {
		t.Helper()
		if n, err := j.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	write("alone")
	j.announced.Store(true)
	write("header ")
	write("body")
	write("another")
	if got, want := w.sent(), []string{"alone", "header body", "another"}; !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
	j.announced.Store(true)
	write("header")
	select {
	case got := <-w.writes:
		if got != "header" {
			t.Errorf("sent %q", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("the write is still held")
	}
	write("body")
	if got := w.sent(); !slices.Equal(got, []string{"body"}) {
		t.Errorf("sent %q", got)
	}
}

// A held write that fails makes the next one fail, with nothing sent after it.
func TestJoinedWriteFails(t *testing.T) {
	broken := errors.New("broken")
	w := &wire{writes: make(chan string, 10), fails: broken}
	j := &joinedConn{Conn: w}
	j.announced.Store(true)
	if _, err := j.Write([]byte("header")); err != nil {
		t.Fatal(err)
	}
	<-w.writes // the timer's
	if _, err := j.Write([]byte("body")); err != broken {
		t.Errorf("error %v, want %v", err, broken)
	}
	if got := w.sent(); len(got) > 0 {
		t.Errorf("sent %q after an error", got)
	}
}
