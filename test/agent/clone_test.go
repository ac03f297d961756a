package agent

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// copyOf returns a host with a copy of another host's data directory.
func (h *host) copyOf(suffix, dockerHost, extra string) *host {
	h.t.Helper()
	c := newNode(h.t, dockerHost, suffix)
	c.node = h.node
	c.configure(extra)
	if err := os.CopyFS(filepath.Join(c.dir, "data"), os.DirFS(filepath.Join(h.dir, "data"))); err != nil {
		h.t.Fatal(err)
	}
	return c
}

// A copy of a host whose agent is alive does not start, and changes nothing. The copy of a
// host that is gone continues as the same node.
func TestClonedHost(t *testing.T) {
	labtest.NeedLong(t, "test/fleet TestEverythingHappens clones nodes")
	needDocker(t)
	client := labtest.FreePort(t)
	etcd := startEtcd(t, t.TempDir(), client, labtest.FreePort(t))
	t.Cleanup(etcd.Close)
	store := "store: {endpoints: ['" + client + "'], " + quick + "}"
	h := newHost(t, store)
	h.start()
	h.open("alice")
	before := h.sessions()[0]
	other := labtest.Private(t, lab.Options{})
	if err := labtest.ImportServer(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	clone := h.copyOf("-clone", other.Host(), store)
	wantError(t, clone.run(), 1, "node "+h.node+", with its gateway at "+h.gateway, "holdfast node new-id")
	h.open("alice")
	if now := h.sessions()[0]; now.Owner != before.Owner || !slices.Contains(h.running()["alice"], before.ContainerID) {
		t.Errorf("%+v became %+v", before, now)
	}
	second := h.copyOf("-second", other.Host(), store)
	second.node += "-second"
	second.configure(store)
	wantError(t, second.run(), 1, "belongs to node "+h.node, "holdfast node new-id")
	second.must("node", "new-id", "--config", second.configFile())
	second.start()
	if nodes := h.nodes(); len(nodes) != 2 {
		t.Errorf("beside a copy with an id of its own there are %+v", nodes)
	}

	inits := h.inits()
	h.kill()
	h.endDeadman()
	if err := syscall.Kill(inits["alice"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	clone.start()
	clone.open("alice")
	if now := clone.sessions()[0]; string(now.Node) != h.node || now.Epoch <= before.Epoch {
		t.Errorf("%+v became %+v", before, now)
	}
}

// A second agent with the same node id and its own directories does not start on an engine,
// whether the first agent is alive or not.
func TestSecondAgentOfANodeOnOneEngine(t *testing.T) {
	h := newHost(t, "")
	h.start()
	h.open("alice")
	before := h.sessions()[0]
	second := newNode(t, h.docker, "-second")
	second.node, second.keys, second.direct = h.node, h.keys, h.direct
	second.configure("")
	wantError(t, second.run(), 1, "another agent of node "+h.node, "node:")
	h.kill()
	wantError(t, second.run(), 1, "of node "+h.node+" belong to another store", "node:")
	h.start()
	h.open("alice")
	if now := h.sessions()[0]; now.Owner != before.Owner {
		t.Errorf("%+v became %+v", before, now)
	}
}
