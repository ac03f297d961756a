package relay

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/test/poll"
)

// passed makes the pairs of a relay continue in another one, with a state that went through
// JSON. It returns how many there were.
func passed(t *testing.T, from, to *Relay, got chan Exported, again func(*Spec)) int {
	t.Helper()
	from.Export()
	n := len(got)
	for range n {
		e := <-got
		b, err := json.Marshal(e.State)
		if err != nil {
			t.Fatal(err)
		}
		e.State = State{}
		if err := json.Unmarshal(b, &e.State); err != nil {
			t.Fatal(err)
		}
		s, err := e.Open()
		if err != nil {
			t.Fatal(err)
		}
		again(&s)
		if err := to.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// Pairs pass through a sequence of relays while both ends send. Nothing is lost, doubled or
// reordered, also where a reader is slow. The end of a direction is passed on.
func TestExportedPairsContinue(t *testing.T) {
	const relays, size = 12, 16 << 20
	got := make(chan Exported, 8)
	first, stop := startRelay(t)
	var ended atomic.Int32
	again := func(s *Spec) {
		s.Export = func(e Exported) { got <- e }
		s.Done = func() { ended.Add(1) }
	}
	e := add(t, first, "sockets", again)
	said, asked := make([]byte, size), make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(said)
	r.Read(asked)
	var all sync.WaitGroup
	last := make(chan struct{}) // closed when the rest may be sent
	talk := func(c stream, say, want []byte, slow bool) {
		all.Go(func() {
			_, err := c.Write(say[:size/2])
			<-last
			if _, more := c.Write(say[size/2:]); err != nil || more != nil {
				t.Error(err, more)
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			b := make([]byte, 0, size)
			for buf := make([]byte, 300<<10); ; {
				n, err := c.Read(buf)
				b = append(b, buf[:n]...)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
				if slow {
					time.Sleep(4 * time.Millisecond)
				}
			}
			if !bytes.Equal(b, want) {
				t.Errorf("%d bytes arrived of %d, or others", len(b), len(want))
			}
		})
	}
	for _, c := range []stream{e.client, e.upstream} {
		c.SetDeadline(time.Now().Add(patience))
	}
	talk(e.client, asked, said, false)
	talk(e.upstream, said, asked, true)
	moved := 0
	for from := first; moved < relays; moved++ {
		time.Sleep(5 * time.Millisecond)
		to, stopNext := startRelay(t)
		if n := passed(t, from, to, got, again); n != 1 {
			t.Fatalf("after %d relays, %d pairs were passed on", moved, n)
		}
		if n := int(ended.Load()); n != moved+1 {
			t.Errorf("after %d relays, Done was called %d times", moved+1, n)
		}
		stop()
		from, stop = to, stopNext
	}
	close(last)
	all.Wait()
	poll.Until(t, "the pair has ended", func() bool { return int(ended.Load()) == relays+1 })
}

// The next relay knows where the frames are: it sends 1012 between two, and nothing in the
// middle of one.
func TestExportedFrames(t *testing.T) {
	for name, c := range map[string]struct {
		said, later, want []byte
	}{
		"between two frames":    {hello, nil, restart},
		"in a header":           {hello[:1], nil, nil},
		"in a payload":          {hello[:4], nil, nil},
		"a frame is completed":  {hello[:4], hello[4:], join(hello[4:], restart)},
		"a header is completed": {hello[:1], hello[1:], join(hello[1:], restart)},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan Exported, 1)
			from, _ := startRelay(t)
			to, _ := startRelay(t)
			e := add(t, from, "sockets", func(s *Spec) { s.WebSocket, s.Export = true, func(e Exported) { got <- e } })
			write(t, e.upstream, c.said)
			readFull(t, e.client, c.said)
			left, done := make(chan struct{}), make(chan struct{})
			if n := passed(t, from, to, got, func(s *Spec) { s.WebSocket, s.Left, s.Done = true, left, func() { close(done) } }); n != 1 {
				t.Fatalf("%d pairs were exported", n)
			}
			write(t, e.upstream, c.later)
			close(left)
			if all := readAll(t, e.client); !bytes.Equal(all, c.want) {
				t.Errorf("got %x, want %x", all, c.want)
			}
			e.client.Close()
			<-done
		})
	}
}

// Pairs that are ending, have no Export, or use TLS are served to their end.
func TestNotExported(t *testing.T) {
	r, stop := startRelay(t)
	export := func(s *Spec) { s.WebSocket, s.Export = true, func(Exported) { t.Error("exported") } }
	tls, without, gone := add(t, r, "tls", export), add(t, r, "sockets", webSocket), add(t, r, "sockets", export)
	close(gone.left)
	readFull(t, gone.client, restart)
	r.Export()
	for _, e := range []ends{tls, without} {
		write(t, e.upstream, hello)
		readFull(t, e.client, hello)
		write(t, e.client, hello)
		readFull(t, e.upstream, hello)
	}
	gone.client.Close()
	go tls.client.Close()
	without.client.Close()
	stop()
	r.Export() // has no effect
}
