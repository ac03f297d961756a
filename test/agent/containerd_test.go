package agent

import (
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/engine/containerd"
	"holdfast/internal/lab"
	"holdfast/internal/lab/labtest"
)

// newContainerdHost is a node on a containerd of its own, with an agent that is
// not started yet.
func newContainerdHost(t *testing.T) (*host, *lab.Containerd) {
	t.Helper()
	_, daemon := labtest.Containerd(t)
	h := newNode(t, "", "")
	h.keys = fmt.Sprintf("name: containerd, host: %q, cgroup_parent: %q", daemon.Host(), daemon.CgroupParent())
	h.configure("")
	c := labtest.ContainerdConfig(daemon)
	c.Dir = filepath.Join(h.dir, "data", "containerd")
	e, err := containerd.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	h.engine = e
	return h, daemon
}

// TestSessionsOnContainerd: sessions outlive the agent and the daemon, and end
// with a drain.
func TestSessionsOnContainerd(t *testing.T) {
	h, daemon := newContainerdHost(t)
	h.start()
	var all sync.WaitGroup
	for _, key := range []string{"alice", "bob", "carol"} {
		all.Go(func() { h.open(key) })
	}
	all.Wait()
	before, inits := h.running(), h.inits()
	if len(before) != 3 {
		t.Fatalf("sessions %v", before)
	}
	same := func(when string) {
		t.Helper()
		for key := range before {
			h.open(key)
		}
		if diff := cmp.Diff(before, h.running()); diff != "" {
			t.Errorf("containers before and after %s:\n%s", when, diff)
		}
		if diff := cmp.Diff(inits, h.inits()); diff != "" {
			t.Errorf("inits before and after %s:\n%s", when, diff)
		}
	}

	h.signal(syscall.SIGKILL)
	h.wait()
	h.start()
	same("the agent was killed")

	if err := daemon.StopDaemon(); err != nil {
		t.Fatal(err)
	}
	h.open("alice") // it needs no engine
	if err := daemon.StartDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	same("containerd was restarted")
	if err := daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := daemon.StartDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	same("containerd crashed")

	h.must("session", "stop", "bob")
	if alive(inits["bob"]) {
		t.Error("bob's init lives after his session was stopped")
	}
	eventually(t, "bob's container is removed", func() bool { return len(h.containers()) == 2 })

	h.must("agent", "stop")
	if code := h.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, &h.errs)
	}
	for key, pid := range inits {
		if alive(pid) {
			t.Errorf("the init of %s lives after a drain", key)
		}
	}
	h.start() // which tidies up
	eventually(t, "all containers are removed", func() bool { return len(h.containers()) == 0 })
	h.must("agent", "stop")
	h.wait()
}
