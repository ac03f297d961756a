package agent

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// inSandbox reports whether a session's container waited for it.
func (h *host) inSandbox(key string) bool {
	h.t.Helper()
	for _, s := range h.sessions() {
		if string(s.Key) == key {
			c, err := h.api().Inspect(h.t.Context(), s.ContainerID)
			if err != nil {
				h.t.Fatal(err)
			}
			return strings.HasPrefix(c.Name, "holdfast-warm-")
		}
	}
	h.t.Fatalf("there is no session %s", key)
	return false
}

// sandboxes waits until n sandboxes wait.
func (h *host) sandboxes(n string) {
	h.t.Helper()
	poll.Until(h.t, n+" sandboxes wait", func() bool { return h.metric(`holdfast_warm_ready{template="web"}`) == n })
}

// A suspended session, a session that moves and the children of a fork are restored in sandboxes
// that wait for them. There they are sessions like any other, also for the next agent. Without
// a sandbox, or with one that has died, they are restored in a new container.
func TestSandboxes(t *testing.T) {
	m := newMover(t)
	hosts := newFleetOn(t, m.engine.Host(), 2, patient, func(int) string {
		return m.config("", "    fork: allowed\n    network: pooled\n    warm: 2\n")
	}, (*host).installReal, (*host).startLogged)
	for _, h := range hosts {
		h.sandboxes("2")
	}
	first := hosts[0].ask("a")
	at, _ := owner(t, hosts, "a")
	near := besides(hosts, at)[0]
	if at.inSandbox("a") {
		t.Error("a session without memory is in a sandbox")
	}
	for range labtest.Count(2, 20) {
		at.sandboxes("2")
		at.must("session", "suspend", "a")
		at.goesOn(first)
		if !at.inSandbox("a") {
			t.Error("it was not restored in a sandbox")
		}
	}
	file := filepath.Join(t.TempDir(), "identity")
	at.must("session", "cp", "a:/run/holdfast/session.json", file)
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), `"session":"a"`) {
		t.Errorf("its identity is %q, %v", text, err)
	}

	// The next agent takes it over, and ends the sandboxes that wait.
	if r, u := at.upgrade(); r.code != 0 || u.Sessions != 1 {
		t.Fatalf("%+v\n%+v", r, u)
	}
	at.goesOn(first)

	// A fork: of three children, two find a sandbox.
	at.sandboxes("2")
	number := at.count("a").Number
	at.must("session", "fork", "a", "b", "c", "d")
	in := 0
	for _, key := range []string{"b", "c", "d"} {
		at.child(key, number)
		if at.inSandbox(key) {
			in++
		}
	}
	if in != 2 {
		t.Errorf("%d children are in sandboxes, want 2", in)
	}
	for _, key := range []string{"b", "c", "d"} {
		at.must("session", "stop", key)
	}

	// Sandboxes that have died.
	at.sandboxes("2")
	at.must("session", "suspend", "a")
	for _, c := range at.containers() {
		c, err := at.api().Inspect(t.Context(), c.ID)
		if err == nil && c.Pid > 0 && c.Labels["holdfast.warm"] != "" {
			_ = syscall.Kill(c.Pid, syscall.SIGKILL) // it may have ended
		}
	}
	at.goesOn(first)

	// A drain moves it into a sandbox of the other node.
	near.sandboxes("2")
	near.must("node", "drain", at.node)
	near.goesOn(first)
	if now, _ := owner(t, hosts, "a"); now != near || !near.inSandbox("a") {
		t.Errorf("it is on node %s, in a sandbox: %v", now.node, near.inSandbox("a"))
	}
	for _, h := range hosts {
		h.must("agent", "stop")
	}
	poll.Until(t, "no container is left", func() bool {
		for _, c := range near.containers() {
			if c.Running() {
				return false
			}
		}
		return true
	})
	m.expectNothingLeft()
}
