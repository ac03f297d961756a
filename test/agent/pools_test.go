package agent

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/engine"
	"holdfast/internal/netpool"
)

// networks are the containers that hold networks for the node's sessions.
func (h *host) networks() []engine.Container {
	h.t.Helper()
	list, err := h.api().List(context.Background(), map[string]string{netpool.Label: h.node})
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

// network is whose network a key's container has joined, "" for its own.
func (h *host) network(key string) string {
	h.t.Helper()
	ids := h.running()[key]
	if len(ids) != 1 {
		h.t.Fatalf("%d containers run for %s", len(ids), key)
	}
	c, err := h.api().Inspect(h.t.Context(), ids[0])
	if err != nil {
		h.t.Fatal(err)
	}
	id, joined := strings.CutPrefix(c.Network, "container:")
	if !joined {
		return ""
	}
	return id
}

// networksReady waits until the node has ready networks, and others used.
func (h *host) networksReady(ready, used string) {
	h.t.Helper()
	eventually(h.t, ready+" networks are ready, "+used+" used", func() bool {
		return h.metric("holdfast_networks_ready") == ready && h.metric("holdfast_networks_used") == used
	})
}

// TestReadyNetworksOverLives follows them through a boot, a crash, a drain that
// the agent goes on after, and its end.
func TestReadyNetworksOverLives(t *testing.T) {
	h := newHost(t, "sessions: {networks: 2}")
	h.start()
	h.networksReady("2", "0")
	h.open("alice")
	alice := h.network("alice")
	if alice == "" {
		t.Fatal("alice has joined no network")
	}
	h.networksReady("2", "1")
	if n := len(h.networks()); n != 3 {
		t.Errorf("%d networks, wanted 3", n)
	}
	before := map[string]bool{}
	for _, c := range h.networks() {
		before[c.ID] = true
	}

	h.kill()
	h.start()
	h.networksReady("2", "1")
	if again := h.network("alice"); again != alice {
		t.Errorf("alice is in the network of %s, was in that of %s", again, alice)
	}
	h.open("alice")
	eventually(t, "what the killed agent kept ready is gone", func() bool {
		list := h.networks()
		for _, c := range list {
			if before[c.ID] != (c.ID == alice) {
				return false
			}
		}
		return len(list) == 3
	})

	h.must("drain")
	h.networksReady("0", "0")
	eventually(t, "nothing is left after a drain", func() bool { return len(h.networks()) == 0 })
	h.must("node", "uncordon")
	h.networksReady("2", "0")
	h.open("bob")
	h.signal(syscall.SIGTERM)
	if code := h.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, c := range h.networks() {
		if c.State == "running" {
			t.Errorf("%s runs after the agent's end", c.Name)
		}
	}
}
