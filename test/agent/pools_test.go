package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/pool/network"
	"holdfast/test/lab/echoserver"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// holders returns the containers by way of which the node's sessions join networks.
func (h *host) holders() []engine.Container {
	h.t.Helper()
	list, err := h.api().List(context.Background(), map[string]string{network.Label: h.node})
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

// Networks of Holdfast's over a boot, crashes, a restart, a drain and the agent's end. Nothing is left on the host: no device, no bridge, no running holder.
func TestNetworksOverLives(t *testing.T) {
	if labtest.OnContainerd() {
		t.Skip("there all networks are Holdfast's")
	}
	h := newHost(t, "sessions: {boots: 2}\n"+poolTemplate(pooled))
	h.pool = pooled
	h.start()
	h.open("alice")
	address := h.inspect("alice").Addresses[0]
	if !strings.HasPrefix(address, "10.172.") {
		t.Errorf("alice has %s", address)
	}
	before := h.holders()
	h.kill()
	poll.Until(t, "the holders exit with their agent", func() bool {
		return !slices.ContainsFunc(h.holders(), engine.Container.Running)
	})
	h.start()
	h.open("alice")
	if now := h.inspect("alice").Addresses[0]; now != address {
		t.Errorf("alice has %s, had %s", now, address)
	}
	h.open("bob")
	poll.Until(t, "the holders of the killed agent are gone", func() bool {
		return !slices.ContainsFunc(h.holders(), func(c engine.Container) bool {
			return slices.ContainsFunc(before, func(b engine.Container) bool { return b.ID == c.ID })
		})
	})
	h.must("agent", "stop", "--keep")
	h.wait()
	h.start()
	h.open("alice")
	h.must("drain")
	poll.Until(t, "no network is used or ready after a drain", func() bool {
		return h.metric("holdfast_networks_used") == "0" && h.metric("holdfast_networks_ready") == "0"
	})
	h.must("node", "uncordon")
	h.poolFull()
	h.open("carol")
	h.signal(syscall.SIGTERM)
	if code := h.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if list := h.holders(); slices.ContainsFunc(list, engine.Container.Running) {
		t.Errorf("%v run after the agent's end", list)
	}
	gone := func() bool { _, err := net.InterfaceByName(dockerBridge); return err != nil }
	poll.Until(t, "the bridge is gone", gone)
	// The guardian removes it after a killed agent and its last session.
	h.start()
	h.open("dave")
	h.kill()
	if gone() {
		t.Error("the bridge of a session is gone")
	}
	if err := h.api().Remove(t.Context(), h.running()["dave"][0]); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the guardian removes the bridge", gone)
}

// joined reports whether a key's container is in a network of Holdfast's beside Docker.
func (h *host) joined(key string) bool {
	h.t.Helper()
	c := h.inspect(key)
	return strings.HasPrefix(c.Network, "container:") && len(c.Addresses) == 1 && strings.HasPrefix(c.Addresses[0], "10.172.")
}

// inspect returns the container of a key.
func (h *host) inspect(key string) engine.Container {
	h.t.Helper()
	ids := h.running()[key]
	if len(ids) != 1 {
		h.t.Fatalf("%d containers run for %s", len(ids), key)
	}
	c, err := h.api().Inspect(h.t.Context(), ids[0])
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// warmTemplate is the test server with warm containers, and a workspace for each key.
func (h *host) warmTemplate(n int) string {
	return fmt.Sprintf(`
templates:
  - name: web
    image: %s
    port: 8080
    warm: %d
    ready: {http: /healthz, timeout: 2m}
    env: {NAME_OF: "{key}"}
    mounts: [{type: bind, source: "%s/work/{key}", target: /work}]
`, labtest.TestServer, n, h.dir)
}

// warm returns the running containers without a session.
func (h *host) warm() []engine.Container {
	h.t.Helper()
	owned := map[string]bool{}
	for _, s := range h.sessions() {
		owned[s.ContainerID] = true
	}
	return slices.DeleteFunc(h.containers(), func(c engine.Container) bool { return owned[c.ID] })
}

func (h *host) warmReady(n int) {
	h.t.Helper()
	poll.Until(h.t, fmt.Sprint(n, " containers are warm"), func() bool {
		return h.metric(`holdfast_warm_ready{template="web"}`) == fmt.Sprint(n) && len(h.warm()) == n
	})
}

// told returns the identity that a key's container reports.
func (h *host) told(key string) string {
	h.t.Helper()
	res, text := h.get("/s/" + key + "/")
	var r echoserver.Reply
	if err := json.Unmarshal([]byte(text), &r); err != nil || res.StatusCode != http.StatusOK {
		h.t.Fatalf("%s: %s: %v: %s", key, res.Status, err, text)
	}
	return r.Env["NAME_OF"]
}

// Warm containers of a node with a shared store, over claims, a crash with its deadman, a
// drain, and the agent's end.
func TestWarmContainersOverLives(t *testing.T) {
	h := newHost(t, "")
	for _, key := range []string{"alice", "bob", "carol"} {
		if err := os.MkdirAll(filepath.Join(h.dir, "work", key), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	client := labtest.FreePort(t)
	etcd := startEtcd(t, t.TempDir(), client, labtest.FreePort(t))
	t.Cleanup(etcd.Close)
	h.configure("store: {endpoints: [\"" + client + "\"], fence: 50s, ttl: 60s}\n" + h.warmTemplate(2))
	h.start()
	h.warmReady(2)
	if got := h.told("alice"); got != "alice" {
		t.Errorf("alice's container received %q", got)
	}
	h.warmReady(2)
	before := h.sessions()

	h.kill()
	h.start()
	h.warmReady(2)
	if now := h.sessions(); len(now) != 1 || now[0].ContainerID != before[0].ContainerID || now[0].Epoch != before[0].Epoch {
		t.Errorf("after a crash the containers are %+v, before %+v", now, before)
	}
	if got := h.told("alice"); got != "alice" {
		t.Errorf("after a crash alice's container is %q", got)
	}
	if got := h.told("bob"); got != "bob" {
		t.Errorf("bob's container received %q", got)
	}

	h.must("drain")
	poll.Until(t, "nothing is left after a drain", func() bool { return len(h.containers()) == 0 && len(h.sessions()) == 0 })
	h.must("node", "uncordon")
	h.warmReady(2)
	if got := h.told("carol"); got != "carol" {
		t.Errorf("carol's container received %q", got)
	}
	h.signal(syscall.SIGTERM)
	if code := h.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	poll.Until(t, "no container runs after the agent's end", func() bool {
		return !slices.ContainsFunc(h.containers(), func(c engine.Container) bool { return c.State == "running" })
	})
	poll.Until(t, "no deadman is left", func() bool { return h.findDeadman() == 0 })
}

// With each kind of pool, a boot is recorded once, with its kind of pool. Creating containers
// for a pool is not a spin-up of a session. A collection of all unused objects keeps the
// containers of pools.
func TestRecordsAndCollectionsWithEachPool(t *testing.T) {
	eachPool(t, warm, func(t *testing.T, pool string) {
		h := newHost(t, `gc: {min_age: 0s, keep: ["*busybox*"], rules: [{kinds: [stopped, created, image]}]}`+"\n"+poolTemplate(pool))
		h.pool = pool
		h.start()
		h.open("alice")
		r := h.spinupOf("alice", 1)[0]
		if r.Kind != spinup.ForSession || r.Outcome != spinup.OK || r.Container == "" || !r.Pull.Cached || r.Times[spinup.Start] <= 0 || r.Times[spinup.Ready] <= 0 {
			t.Errorf("%+v", r)
		}
		if created := r.Times[spinup.Create] > 0; created != (pool != warm) {
			t.Errorf("a create took %v", r.Times[spinup.Create])
		}
		h.poolFull()
		if all := h.spinups(); len(all) != 1 {
			t.Errorf("containers of the pool are recorded: %+v", all)
		}
		theirs := h.past()
		ids := func() (ids []string) {
			for _, c := range append(h.containers(), h.holders()...) {
				ids = append(ids, c.ID)
			}
			return ids
		}
		before := ids()
		h.must("gc", "run")
		after := ids() // possibly with another network
		for _, id := range before {
			if !slices.Contains(after, id) {
				t.Errorf("a collection kept %v of %v", after, before)
			}
		}
		if _, err := h.api().Inspect(t.Context(), theirs); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("a collection removes nothing, not even unused images: %v", err)
		}
		h.open("alice")
		h.open("bob")
	})
}

// past returns a container of another tool that has run.
func (h *host) past() string {
	h.t.Helper()
	id, err := h.api().Create(h.t.Context(), engine.Spec{Image: labtest.TestServer, Network: "none"})
	if err == nil {
		err = h.api().Start(h.t.Context(), id)
	}
	if err == nil {
		err = h.api().Kill(h.t.Context(), id)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}
