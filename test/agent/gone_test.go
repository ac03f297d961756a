package agent

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"holdfast/internal/platform/engine/containerd"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// dockerBridge is the name of Holdfast's bridge beside Docker.
const dockerBridge = "holdfast1"

// If an agent does not return, its holders exit and the deadman kills the sessions. The
// guardian then removes Holdfast's own bridge and NAT, and ends.
func TestAgentThatIsGoneForGood(t *testing.T) {
	h := newHost(t, "")
	client := labtest.FreePort(t)
	etcd := startEtcd(t, t.TempDir(), client, labtest.FreePort(t))
	t.Cleanup(etcd.Close)
	h.configure("store: {endpoints: [\"" + client + "\"], renew: 200ms, fence: 5s, kill_budget: 2s, ttl: 16s}\nsessions: {boots: 2}\n")
	h.pool = pooled
	h.start()
	h.open("alice")
	before := h.inits()
	for _, c := range h.holders() {
		c, err := h.api().Inspect(t.Context(), c.ID)
		if err != nil {
			t.Fatal(err)
		}
		before[c.Name] = c.Pid
	}
	name := dockerBridge
	if labtest.OnContainerd() {
		name = containerd.DefaultBridge
	} else if len(before) != 3 {
		t.Fatalf("%v run", before)
	}
	guardian := h.guardian()
	if guardian == 0 {
		t.Fatal("there is no guardian")
	}

	h.kill()
	for name, pid := range before {
		poll.Until(t, name+" is dead", func() bool { return !alive(pid) })
	}
	poll.Until(t, "the bridge is gone", func() bool { _, err := netlink.LinkByName(name); return err != nil })
	poll.Until(t, "the way out is gone", func() bool { return !strings.Contains(strings.Join(firewall(t), "\n"), "holdfast-net-") })
	poll.Until(t, "the guardian is gone", func() bool { return !alive(guardian) })
}

// guardian returns the pid of the host's guardian, 0 for none.
func (h *host) guardian() int {
	h.t.Helper()
	all := processes(h.t)
	i := slices.IndexFunc(all, func(p process) bool {
		return len(p.args) >= 3 && p.args[1] == "guardian" && p.args[2] == filepath.Join(h.dir, "run")
	})
	if i < 0 {
		return 0
	}
	return all[i].pid
}
