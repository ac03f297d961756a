package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/containerd"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// newContainerdHost is a node on a containerd of its own, with an agent that is
// not started yet.
func newContainerdHost(t *testing.T) (*host, *lab.Containerd) {
	t.Helper()
	_, daemon := labtest.Containerd(t)
	return hostOnContainerd(t, daemon, ""), daemon
}

// hostOnContainerd returns a node on a containerd.
func hostOnContainerd(t *testing.T, daemon *lab.Containerd, extra string) *host {
	t.Helper()
	h := newNode(t, "", "")
	h.isOnContainerd(labtest.ContainerdConfig(daemon))
	h.configure(extra)
	return h
}

// isOnContainerd configures a node for a containerd.
func (h *host) isOnContainerd(c containerd.Config) {
	h.keys = fmt.Sprintf("name: containerd, host: %q, namespace: %q, bridge: %q, subnet: %q, cgroup_parent: %q",
		c.Host, cmp.Or(c.Namespace, containerd.DefaultNamespace), cmp.Or(c.Bridge, containerd.DefaultBridge), cmp.Or(c.Subnet, containerd.DefaultSubnet), c.CgroupParent)
	if runtimes, err := json.Marshal(c.Runtimes); err == nil && len(c.Runtimes) > 0 {
		h.keys += ", runtimes: " + string(runtimes)
	}
	c.Dir = filepath.Join(h.dir, "data", "containerd")
	h.direct = &c
}

// needDocker skips tests of Docker itself with -on-containerd.
func needDocker(t *testing.T) {
	t.Helper()
	if labtest.OnContainerd() {
		t.Skip("-on-containerd: this is about Docker")
	}
}

// Sessions outlive the agent and the daemon, and end with a drain.
func TestSessionsOnContainerd(t *testing.T) { eachPool(t, warm, sessionsOnContainerd) }

func sessionsOnContainerd(t *testing.T, pool string) {
	h, daemon := newContainerdHost(t)
	h.pool = pool
	h.configure(poolTemplate(pool))
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
		if diff := gocmp.Diff(before, h.running()); diff != "" {
			t.Errorf("containers before and after %s:\n%s", when, diff)
		}
		if diff := gocmp.Diff(inits, h.inits()); diff != "" {
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

	if out := h.must("session", "logs", "alice"); !strings.Contains(out, "listening on") {
		t.Errorf("alice's log: %q", out)
	}
	if out := h.must("session", "exec", "alice", "--", "/program", "-h"); out != "" {
		t.Errorf("a command in alice's container printed %q", out)
	}
	var records []struct {
		Cohort struct{ Engine, Driver string }
	}
	if err := json.Unmarshal([]byte(h.must("spinup", "ls", "--json")), &records); err != nil || len(records) == 0 || !strings.HasPrefix(records[0].Cohort.Engine, "containerd ") {
		t.Errorf("records of spin-ups: %+v, %v", records, err)
	}
	h.must("gc", "plan")
	h.must("gc", "run")
	same("garbage was collected")

	h.must("session", "stop", "bob")
	if alive(inits["bob"]) {
		t.Error("bob's init lives after his session was stopped")
	}
	poll.Until(t, "bob's container is removed", func() bool { return len(h.claimed()) == 2 })

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
	poll.Until(t, "all containers are removed", func() bool { return len(h.claimed()) == 0 })
	h.must("agent", "stop")
	h.wait()
	for _, c := range append(h.containers(), h.holders()...) {
		if c.Running() {
			t.Errorf("%s runs after the agent's end", c.Name)
		}
	}
}

// A drain of the whole containerd also kills containers of other tools in its namespace. The
// agent does not restart them.
func TestDrainOfTheWholeContainerd(t *testing.T) {
	_, daemon := labtest.Containerd(t)
	// Without ready networks: the drain would count their containers, too.
	h := hostOnContainerd(t, daemon, "sessions: {networks: 0}\n")
	h.start()
	h.open("alice")
	theirs, err := h.api().Create(t.Context(), engine.Spec{Name: "theirs", Image: labtest.TestServer, Restart: engine.RestartAlways})
	if err == nil {
		err = h.api().Start(t.Context(), theirs)
	}
	if err != nil {
		t.Fatal(err)
	}
	var report holdfast.DrainReport
	if err := json.Unmarshal([]byte(h.must("drain", "--engine-all", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.Dead != 2 || report.Released != 1 {
		t.Errorf("report %+v", report)
	}
	notBackBy(t, h, theirs)
	if err := h.api().Remove(t.Context(), theirs); err != nil {
		t.Error(err)
	}
}
