package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/sessions/kill"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// sleeping is a template whose sessions sleep after a second without data.
const sleeping = "templates:" + template + `    sleep: {after: 1s, idle_by: data}
`

// sleep returns how a session of this node sleeps.
func (h *host) sleep(key string) holdfast.Sleep {
	h.t.Helper()
	res, err := http.Get("http://" + h.apiTCP + "/v1/sessions/" + key) // a process for each look would load the host
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	var s api.Session
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil || s.Sleep == nil {
		h.t.Fatalf("session %s is not here, or it never sleeps: %v", key, err)
	}
	return *s.Sleep
}

func (h *host) awaitSleep(key string) holdfast.Sleep {
	h.t.Helper()
	var s holdfast.Sleep
	poll.Until(h.t, "the session sleeps", func() bool { s = h.sleep(key); return s.Asleep() })
	return s
}

// freezer returns the control group of a session's container that can be frozen.
func (h *host) freezer(key string) cgroup.Group {
	h.t.Helper()
	ids := h.running()[key]
	if len(ids) != 1 {
		h.t.Fatalf("session %s has the containers %v", key, ids)
	}
	c, err := h.api().Inspect(h.t.Context(), ids[0])
	if err != nil {
		h.t.Fatal(err)
	}
	target, err := kill.Open(c.ID, c.Name, c.Pid)
	if err != nil {
		h.t.Fatal(err)
	}
	defer target.Close()
	g, err := target.Freezer()
	if err != nil {
		h.t.Fatal(err)
	}
	return g
}

func (h *host) frozen(g cgroup.Group) bool {
	h.t.Helper()
	is, err := g.Frozen()
	if err != nil {
		h.t.Fatal(err)
	}
	return is
}

// numbered is a client's WebSocket with numbered messages, which the server echoes.
type numbered struct {
	t          *testing.T
	ws         *websocket.Conn
	sent       int
	got        atomic.Int64
	firstWrong atomic.Pointer[string]
	told       atomic.Bool // the gateway has sent "0"
}

func dialNumbered(ctx context.Context, t *testing.T, gateway, key string) *numbered {
	t.Helper()
	ws, _, err := websocket.Dial(ctx, "ws://"+gateway+"/s/"+key+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &numbered{t: t, ws: ws}
	t.Cleanup(func() { ws.CloseNow() })
	go n.read(ctx)
	return n
}

// read counts the echoes in order.
func (n *numbered) read(ctx context.Context) {
	for {
		_, text, err := n.ws.Read(ctx)
		if err != nil {
			return // the test notices that messages are missing
		}
		if string(text) == "0" {
			n.told.Store(true)
			continue
		}
		if want := fmt.Sprintf("%d", n.got.Load()+1); string(text) != want {
			wrong := fmt.Sprintf("got %q, want %q", text, want)
			n.firstWrong.CompareAndSwap(nil, &wrong)
		}
		n.got.Add(1)
	}
}

func (n *numbered) send(ctx context.Context) error {
	n.sent++
	return n.ws.Write(ctx, websocket.MessageText, fmt.Appendf(nil, "%d", n.sent))
}

func (n *numbered) complete() bool { return n.got.Load() == int64(n.sent) }

// allEchoed waits until every message of every socket has come back, once and in order.
func allEchoed(t *testing.T, all []*numbered) {
	t.Helper()
	poll.Until(t, "every message is echoed", func() bool {
		for _, n := range all {
			if !n.complete() {
				return false
			}
		}
		return true
	})
	for i, n := range all {
		if wrong := n.firstWrong.Load(); wrong != nil {
			t.Errorf("socket %d: %s", i, *wrong)
		}
	}
}

// A session sleeps although its clients have WebSockets open. Pings do not wake it, and are
// answered. Data wakes it, is delivered once and in order, also when it arrives while the
// session falls asleep.
func TestSleepWithOpenSockets(t *testing.T) {
	h := newHost(t, sleeping)
	h.installReal()
	h.startLogged()
	h.open("a")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var all []*numbered
	for range 24 {
		all = append(all, dialNumbered(ctx, t, h.gateway, "a"))
	}
	group := h.freezer("a")
	send := func(n *numbered) {
		if err := n.send(ctx); err != nil {
			t.Error(err)
		}
	}
	for round := range 3 {
		before := h.awaitSleep("a")
		if before.Sleeps < round+1 || !h.frozen(group) {
			t.Fatalf("%+v", before)
		}
		var pings sync.WaitGroup
		for _, n := range all {
			pings.Go(func() {
				if err := n.ws.Ping(ctx); err != nil {
					t.Errorf("a Ping to a session that sleeps: %v", err)
				}
			})
		}
		pings.Wait()
		if now := h.sleep("a"); !now.Asleep() || now.Sleeps != before.Sleeps {
			t.Errorf("a Ping has woken it: %+v", now)
		}
		for _, n := range all {
			send(n)
			send(n)
		}
		allEchoed(t, all)
		// It is recorded when the container has been thawed, which may be after the answer.
		poll.Until(t, "the WebSocket has woken it", func() bool {
			now := h.sleep("a")
			return now.WokenBy == holdfast.WokenByWebSocket && !now.WokenAt.Before(before.Since)
		})
	}
	// About when it falls asleep.
	for range 6 {
		time.Sleep(time.Second - 20*time.Millisecond + rand.N(150*time.Millisecond))
		send(all[rand.IntN(len(all))])
		allEchoed(t, all)
	}
	for _, n := range all {
		if err := n.ws.Ping(ctx); err != nil { // answered by the server, or the gateway
			t.Error(err)
		}
	}

	// The next agent of an upgrade keeps the WebSockets.
	h.awaitSleep("a")
	if r, u := h.upgrade(); r.code != 0 || u.Connections != len(all) {
		t.Fatalf("%+v\n%+v", r, u)
	}
	for _, n := range all {
		send(n)
		send(n)
	}
	allEchoed(t, all)

	h.awaitSleep("a")
	if out := h.must("session", "show", "a"); !strings.Contains(out, "sleep        since") {
		t.Error(out)
	}
	h.cli("session", "exec", "a", "--", "/no/such/program")
	if now := h.sleep("a"); now.WokenBy != holdfast.WokenByExec {
		t.Errorf("%+v", now)
	}
}

// An agent that is killed leaves no session frozen, and the next one takes the session over.
func TestSleepOfAKilledAgent(t *testing.T) { killedInSleep(t, 4) }

func TestSleepOfManyKilledAgents(t *testing.T) {
	labtest.NeedLong(t, "forty agents are killed at any time of a sleep and a wake")
	killedInSleep(t, 40)
}

// killedInSleep kills agents whose session sleeps, falls asleep, wakes, or sleeps while no
// guardian lives, in turns.
func killedInSleep(t *testing.T, rounds int) {
	h := newHost(t, sleeping)
	h.start()
	h.open("a")
	group, first := h.freezer("a"), h.running()["a"]
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rounds)*time.Minute)
	defer cancel()
	for round := range rounds {
		step := round % 4
		n := dialNumbered(ctx, t, h.gateway, "a")
		if err := n.send(ctx); err != nil {
			t.Fatal(err)
		}
		allEchoed(t, []*numbered{n})
		switch step {
		case 0:
			h.awaitSleep("a")
		case 1: // while it falls asleep
			time.Sleep(time.Second + rand.N(100*time.Millisecond))
		case 2: // while it wakes
			h.awaitSleep("a")
			if err := n.send(ctx); err != nil {
				t.Fatal(err)
			}
		case 3: // with its guardian
			h.awaitSleep("a")
			h.signal(syscall.SIGSTOP) // it starts no other one
			for _, p := range processes(t) {
				if p.has("guardian", filepath.Join(h.dir, "run")) {
					if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		h.signal(syscall.SIGKILL)
		h.wait()
		if step < 3 {
			poll.Until(t, "the guardian has thawed it", func() bool { return !h.frozen(group) })
		} else if !h.frozen(group) {
			t.Error("no guardian lived, and it was thawed")
		}
		h.start()
		h.open("a") // it may sleep again
		if left, err := filepath.Glob(filepath.Join(h.dir, "run", "frozen", "*")); err != nil || len(left) > 1 {
			t.Errorf("notes of an earlier agent remain: %v, %v", left, err)
		}
		if now := h.running()["a"]; len(now) != 1 || now[0] != first[0] {
			t.Fatalf("containers %v, before %v", now, first)
		}
	}
	h.awaitSleep("a")
	h.must("session", "stop", "a")
	poll.Until(t, "the engine has noticed its end", func() bool { return len(h.running()["a"]) == 0 })
}

// A session sleeps on another node than its client's gateway. It is drained while it sleeps,
// and its client's WebSocket is kept.
func TestSleepBehindAnotherNode(t *testing.T) {
	labtest.NeedLong(t, "TestSleepWithOpenSockets has one node, TestKeptSocket a session that moves")
	hosts := newFleet(t, 2, patient, sleeping+`    websocket: keep
    kept_sockets: {time: 2m, tell: "0"}
`)
	hosts[0].ask("a")
	first, _ := owner(t, hosts, "a")
	near := besides(hosts, first)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	n := dialNumbered(ctx, t, near.gateway, "a")
	send := func() {
		t.Helper()
		if err := n.send(ctx); err != nil {
			t.Fatal(err)
		}
		allEchoed(t, []*numbered{n})
	}
	send()
	first.awaitSleep("a")
	if err := n.ws.Ping(ctx); err != nil {
		t.Error(err)
	}
	if now := first.sleep("a"); !now.Asleep() {
		t.Errorf("a Ping has woken it: %+v", now)
	}
	send()
	if now := first.sleep("a"); now.WokenBy != holdfast.WokenByWebSocket {
		t.Errorf("%+v", now)
	}
	first.awaitSleep("a")
	first.must("node", "drain", first.node)
	poll.Until(t, "the client is told", func() bool { return n.told.Load() })
	send()
	if now, _ := owner(t, hosts, "a"); now != near {
		t.Errorf("the session is on %s", now.node)
	}
}
