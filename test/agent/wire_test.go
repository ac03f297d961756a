package agent

import (
	"context"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// wire is a TCP proxy in front of the peer listener of a node.
type wire struct {
	listener net.Listener
	target   string
	life     context.Context
	work     sync.WaitGroup

	mu     sync.Mutex
	fault  wireFault
	struck int           // connections
	nth    int           // fault
	lanes  int           // open connections
	healed chan struct{} // closed by heal
	timer  *time.Timer   // calls heal; nil: none
}

// wireFault is a fault of connections after a number of bytes to the node.
type wireFault struct {
	how   string // one of the constants below; "": no fault
	after int    // bytes since strike
	times int    // number of connections; 0: all
	all   bool   // every connection, after one has carried the bytes
	heals time.Duration
}

const (
	wireBreaks = "breaks" // both ends see a reset
	wireSilent = "silent" // no byte passes, and no end is notified
	wireDeaf   = "deaf"   // no byte comes back from the node
	wireSlow   = "slow"
)

var (
	fleetListen = regexp.MustCompile(`fleet: \{listen: '([^']+)'`)
	wirePause   = 20 * time.Millisecond // after each piece, of a slow connection
)

// onWire puts a wire in front of the host, before its agent starts.
func (h *host) onWire() *wire {
	h.t.Helper()
	text, err := os.ReadFile(h.configFile())
	if err != nil {
		h.t.Fatal(err)
	}
	own := fleetListen.FindStringSubmatch(string(text))
	if own == nil {
		h.t.Fatalf("it is in no fleet:\n%s", text)
	}
	w := newWire(h.t, own[1])
	changed := strings.Replace(string(text), own[0], own[0]+", advertise: '"+w.listener.Addr().String()+"'", 1)
	if err := os.WriteFile(h.configFile(), []byte(changed), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return w
}

func newWire(t *testing.T, target string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	life, end := context.WithCancel(context.Background())
	w := &wire{listener: l, target: target, life: life, healed: make(chan struct{})}
	w.work.Go(w.serve)
	t.Cleanup(func() {
		end()
		l.Close()
		w.work.Wait()
	})
	return w
}

// strike injects a fault from now on, in place of an earlier one.
func (w *wire) strike(f wireFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault.how != "" {
		close(w.healed)
	}
	w.fault, w.struck, w.healed = f, 0, make(chan struct{})
	w.nth++
}

// idle reports whether no connection is open.
func (w *wire) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lanes == 0
}

// opened adds n to the number of open connections.
func (w *wire) opened(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes += n
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault.how != "" {
		close(w.healed)
	}
	if w.timer != nil {
		w.timer.Stop()
	}
	w.fault = wireFault{}
}

func (w *wire) serve() {
	for {
		c, err := w.listener.Accept()
		if err != nil {
			return // closed
		}
		w.work.Go(func() { w.relay(c) })
	}
}

// lane is one connection.
type lane struct {
	*wire
	near, far net.Conn
	nth       int // number of its last fault; this and the following fields are under wire.mu
	carried   int // bytes to the node since that fault
	counted   bool
}

func (w *wire) relay(near net.Conn) {
	defer near.Close()
	w.opened(1)
	defer w.opened(-1)
	far, err := (&net.Dialer{}).DialContext(w.life, "tcp", w.target)
	if err != nil {
		return
	}
	defer far.Close()
	l := &lane{wire: w, near: near, far: far}
	defer context.AfterFunc(w.life, l.end)()
	var both sync.WaitGroup
	both.Go(func() { l.copy(far, near, true) })
	both.Go(func() { l.copy(near, far, false) })
	both.Wait()
}

func (l *lane) end() {
	l.near.Close()
	l.far.Close()
}

// copy forwards bytes. When one direction ends, the other ends, too.
func (l *lane) copy(to, from net.Conn, there bool) {
	defer l.end()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		how, healed := l.passing(n, there)
		switch {
		case how == wireBreaks:
			for _, c := range []net.Conn{l.near, l.far} {
				_ = c.(*net.TCPConn).SetLinger(0) // close sends a reset
			}
			return
		case how == wireSilent:
			select {
			case <-healed:
			case <-l.life.Done():
				return
			}
		case how == wireDeaf && !there:
			n = 0
		case how == wireSlow:
			time.Sleep(wirePause)
		}
		if _, failed := to.Write(buf[:n]); failed != nil || err != nil {
			return
		}
	}
}

// passing counts bytes and returns their fault.
func (l *lane) passing(n int, there bool) (how string, healed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &l.fault
	if l.nth != l.wire.nth {
		l.nth, l.carried, l.counted = l.wire.nth, 0, false
	}
	if there {
		l.carried += n
	}
	if f.how == "" || f.all && l.struck > 0 {
		return f.how, l.healed
	}
	if l.carried < f.after || f.times > 0 && l.struck >= f.times && !l.counted {
		return "", nil
	}
	if !l.counted {
		l.counted = true
		l.struck++
		if f.heals > 0 {
			l.timer = time.AfterFunc(f.heals, l.heal)
		}
	}
	return f.how, l.healed
}
