package agent

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// asleep is more of the template of a mover, whose sessions are suspended while their clients
// are connected.
const asleep = "    sleep: {after: 1s, idle_by: data}\n"

// tellZero makes the gateway tell clients what a numbered socket expects.
func tellZero(config string) string { return strings.Replace(config, "tell: moved", `tell: "0"`, 1) }

func (h *host) awaitSuspended(key string) {
	h.t.Helper()
	poll.Until(h.t, "the session is suspended", func() bool {
		return h.suspended(key) != "" && len(h.sessions()) == 1 && h.sessions()[0].State == "suspended"
	})
}

// A session is suspended although its clients have WebSockets open. Pings do not resume it, and
// are answered. Data resumes it with its memory, and is delivered once and in order, also when it
// comes while the session is being suspended.
func TestSuspendWithOpenSockets(t *testing.T) {
	m := newMover(t)
	h := newHostOn(t, m.engine.Host(), tellZero(m.config("", asleep)))
	h.installReal()
	h.startLogged()
	first := h.ask("a")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var all []*numbered
	for range 24 {
		all = append(all, dialNumbered(ctx, t, h.gateway, "a"))
	}
	send := func(n *numbered) {
		if err := n.send(ctx); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		h.awaitSuspended("a")
		poll.Until(t, "every socket waits", func() bool { return h.metric("holdfast_gateway_sleeping_sockets") == strconv.Itoa(len(all)) })
		var pings sync.WaitGroup
		for _, n := range all {
			pings.Go(func() {
				if err := n.ws.Ping(ctx); err != nil {
					t.Errorf("a Ping to a session that sleeps: %v", err)
				}
			})
		}
		pings.Wait()
		if s := h.sessions(); len(s) != 1 || s[0].State != "suspended" {
			t.Errorf("a Ping has woken it: %+v", s)
		}
		for _, n := range all {
			send(n)
			send(n)
		}
		allEchoed(t, all)
		h.wokenBy("a", holdfast.WokenByWebSocket)
	}
	h.goesOn(first)
	h.awaitSuspended("a")
	h.goesOn(first)
	h.wokenBy("a", holdfast.WokenByRequest)
	// About when it is suspended.
	for range labtest.Count(3, 40) {
		time.Sleep(time.Second - 50*time.Millisecond + rand.N(600*time.Millisecond))
		for range 1 + rand.IntN(3) {
			send(all[rand.IntN(len(all))])
		}
		allEchoed(t, all)
	}
	h.goesOn(first)

	// The agent is upgraded, while the session is suspended, and while it runs. The next agent
	// keeps the WebSockets, and nothing has woken the session.
	for _, asleep := range []bool{true, false} {
		if asleep {
			h.awaitSuspended("a")
		}
		if r, u := h.upgrade(); r.code != 0 || u.Connections != len(all) {
			t.Fatalf("%+v\n%+v", r, u)
		}
		for _, n := range all {
			if err := n.ws.Ping(ctx); err != nil {
				t.Errorf("a Ping after the upgrade: %v", err)
			}
		}
		if s := h.sessions(); asleep && (len(s) != 1 || s[0].State != "suspended") {
			t.Errorf("the upgrade has woken it: %+v", s)
		}
		for range 2 {
			for _, n := range all {
				send(n)
			}
		}
		allEchoed(t, all)
		h.goesOn(first)
	}

	// An agent that ends closes its clients' WebSockets, and the session stays suspended.
	h.awaitSuspended("a")
	h.must("agent", "stop", "--keep")
	poll.Until(t, "the agent has ended", func() bool { return len(h.agents()) == 0 })
	h.startLogged()
	h.goesOn(first)
	m.expectNothingLeft()
}

// The gateway of another node keeps the WebSockets of a suspended session: while the session is
// resumed on its node, on another one, and while the agent of its node is killed.
func TestSuspendBehindAnotherNode(t *testing.T) {
	m := newMover(t)
	hosts := newFleetOn(t, m.engine.Host(), 2, patient, func(int) string { return tellZero(m.config("", asleep)) }, (*host).installReal, (*host).startLogged)
	first := hosts[0].ask("a")
	had, _ := owner(t, hosts, "a")
	near := besides(hosts, had)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var all []*numbered
	for i := range 8 {
		all = append(all, dialNumbered(ctx, t, near.gateway, "a"))
		if i%4 == 0 {
			all[i].sendAll(ctx, 1)
		}
	}
	exchange := func() {
		t.Helper()
		all[rand.IntN(len(all))].sendAll(ctx, 3)
		allEchoed(t, all)
		for _, n := range all {
			n.sendAll(ctx, 2)
		}
		allEchoed(t, all)
	}
	exchange()
	for range labtest.Count(1, 20) {
		had.awaitSuspended("a")
		exchange()
		had.wokenBy("a", holdfast.WokenByWebSocket)
		if now, _ := owner(t, hosts, "a"); now != had {
			t.Fatalf("the session is on %s", now.node)
		}
		time.Sleep(time.Second - 50*time.Millisecond + rand.N(400*time.Millisecond)) // about when it is suspended
		exchange()
	}
	had.goesOn(first)

	// The client's gateway is upgraded, while the session is suspended on the other node, and
	// while it runs there. Then that node is.
	for _, asleep := range []bool{true, false} {
		if asleep {
			had.awaitSuspended("a")
		}
		if r, u := near.upgrade(); r.code != 0 || u.Connections != len(all) {
			t.Fatalf("%+v\n%+v", r, u)
		}
		exchange()
	}
	if r, u := had.upgrade(); r.code != 0 || u.Connections != 0 {
		t.Fatalf("%+v\n%+v", r, u)
	}
	exchange()

	// Its agent is killed, and the sockets wait at the other node.
	had.awaitSuspended("a")
	had.endAgents()
	had.startLogged()
	for _, n := range all {
		if err := n.ws.Ping(ctx); err != nil {
			t.Error(err)
		}
	}
	exchange()

	// The node is drained while the session is suspended on it: the other node takes the image,
	// also for an agent that ends.
	had.awaitSuspended("a")
	if out := near.must("node", "drain", had.node); !strings.Contains(out, "suspended") {
		t.Errorf("the report:\n%s", out)
	}
	if had.suspended("a") != "" || near.suspended("a") == "" {
		t.Errorf("the image is at %q and at %q", had.suspended("a"), near.suspended("a"))
	}
	had.must("agent", "stop")
	poll.Until(t, "the agent has ended", func() bool { return len(had.agents()) == 0 })
	exchange()
	near.wokenBy("a", holdfast.WokenByWebSocket)
	near.goesOn(first)
	m.expectNothingLeft()
}

// wokenBy expects that the session on this node has continued for the reason.
func (h *host) wokenBy(key string, reason holdfast.WakeReason) {
	h.t.Helper()
	for _, s := range h.sessions() {
		if string(s.Key) == key && s.Sleep != nil && s.Sleep.WokenBy == reason {
			return
		}
	}
	h.t.Errorf("no session %s that was woken by %q: %+v", key, reason, h.sessions())
}

// sendAll sends some messages.
func (n *numbered) sendAll(ctx context.Context, count int) {
	for range count {
		if err := n.send(ctx); err != nil {
			n.t.Error(err)
		}
	}
}
