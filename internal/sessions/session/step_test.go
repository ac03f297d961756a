package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// shell returns an init step that runs a script.
func shell(name, script string) Step {
	return Step{Name: name, Image: labtest.Busybox, Command: []string{"sh", "-c", script}, Timeout: time.Minute}
}

func TestInitStepsRunInOrderBeforeTheSession(t *testing.T) {
	dir := t.TempDir()
	tmpl := web()
	tmpl.Mounts = []engine.Mount{{Type: "bind", Source: dir, Target: "/data"}}
	second := shell("second", "cat /data/first && echo $NAME_OF $HOLDFAST_SESSION $HOLDFAST_EPOCH $(hostname) > /data/second")
	second.Env = map[string]string{"NAME_OF": "step of {key}"}
	first := shell("first", "sleep 0.3; echo {key} > /data/first")
	first.RestoresDisk = true
	tmpl.Steps = []Step{first, second}
	n := newNode(t, setup{cfg: Config{Templates: []Template{tmpl}}})
	r := n.serve(t, "alice")
	if err := answers(r); err != nil {
		t.Error(err)
	}
	o := n.records(t)[0]
	for file, want := range map[string]string{"first": "alice\n", "second": "step of alice alice " + itoa(o.Epoch) + " alice\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
	if o.Boot.Disk < holdfast.Millis(300*time.Millisecond) || o.Boot.Init <= 0 || o.Boot.Create <= 0 {
		t.Errorf("phases %+v", o.Boot)
	}
	poll.Until(t, "the steps' containers are removed", func() bool { return len(n.containers(t)) == 1 })
}

func TestInitStepThatFailsFailsTheBoot(t *testing.T) {
	t.Run("exit code", func(t *testing.T) {
		e := bootFails(t, func(x *Template) {
			x.Steps = []Step{shell("good", "true"), shell("bad", "echo no schema for {key} >&2; exit 3"), shell("never", "sleep inf")}
		})
		if e.Phase != "init" || !strings.Contains(e.Error(), "init step bad") || !strings.Contains(e.Error(), "exit code 3") || !strings.Contains(e.Log, "no schema for alice") {
			t.Errorf("%v; log %q", e, e.Log)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		e := bootFails(t, func(x *Template) {
			slow := shell("slow", "echo waiting; sleep inf")
			slow.Timeout = 6 * time.Second // a busy host needs time until the step writes
			x.Steps = []Step{slow}
		})
		if e.Phase != "init" || !strings.Contains(e.Error(), "not done after 6s") || holdfast.HintOf(e) == "" || !strings.Contains(e.Log, "waiting") {
			t.Errorf("%v; log %q", e, e.Log)
		}
	})
	t.Run("image", func(t *testing.T) {
		e := bootFails(t, func(x *Template) { x.Steps = []Step{{Name: "x", Image: "nowhere/nothing:1", Timeout: time.Minute}} })
		if e.Phase != "pull" || holdfast.HintOf(e) == "" {
			t.Errorf("%v", e)
		}
	})
}

func itoa(e holdfast.Epoch) string { return strconv.FormatInt(int64(e), 10) }

// stepping returns a node with an init step that does not end, and one session in it.
func stepping(t *testing.T) (n *node, fake *fakeEngine, booted chan error) {
	t.Helper()
	tmpl := anywhere(t)
	tmpl.Steps = []Step{{Name: "slow", Timeout: time.Hour}}
	fake = newFakeEngine(t)
	t.Cleanup(fake.close)
	fake.stepTakes = -1
	n = newNode(t, setup{id: "n1", engine: fake, cfg: Config{Templates: []Template{tmpl}}})
	booted = make(chan error, 1)
	go func() { _, _, err := n.Acquire(context.Background(), "alice", ""); booted <- err }()
	// Before the container is opened, only the engine can report that it is dead.
	poll.Until(t, "the boot waits for the step", func() bool {
		waits := 0
		fake.set(func() { waits = fake.waits })
		return waits == 1
	})
	return n, fake, booted
}

func TestInitStepDiesWithItsBoot(t *testing.T) {
	for name, end := range map[string]func(*node){
		"stop":       func(n *node) { _, _ = n.Stop(context.Background(), "alice") },
		"drain":      func(n *node) { n.StopClaiming(); n.MarkTerminating().Settle(context.Background()) },
		"lease lost": func(n *node) { n.LeaseLost(context.Background()) },
		"killed": func(n *node) {
			fake := n.engine.(*fakeEngine)
			c := fake.running()["alice"][0]
			fake.mu.Lock()
			_ = fake.containers[c.ID].cmd.Process.Kill()
			fake.mu.Unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, fake, booted := stepping(t)
			end(n)
			if err := <-booted; err == nil {
				t.Error("the session became ready")
			}
			poll.Until(t, "the container is dead", func() bool { return len(fake.running()) == 0 })
			n.empty(t)
			if bad := fake.wrong(); len(bad) > 0 {
				t.Error(bad)
			}
		})
	}
}

// TestLostLeaseKillsAnInitStepWithoutTheEngine: the kill uses the pidfd.
func TestLostLeaseKillsAnInitStepWithoutTheEngine(t *testing.T) {
	n, fake, booted := stepping(t)
	fake.set(func() { fake.down = true })
	n.LeaseLost(t.Context())
	if running := fake.running(); len(running) > 0 {
		t.Errorf("containers run without a lease: %v", running)
	}
	if err := <-booted; !errors.Is(err, ErrLeaseLost) {
		t.Errorf("got %v", err)
	}
	fake.set(func() { fake.down = false })
	n.empty(t)
}

func TestLostAnswerOfAWaitIsAskedForAgain(t *testing.T) {
	tmpl := anywhere(t)
	tmpl.Steps = []Step{{Name: "first", Timeout: time.Minute}, {Name: "second", Timeout: time.Minute}}
	n, fake := fakeNode(t, setup{cfg: Config{Templates: []Template{tmpl}}})
	fake.set(func() { fake.lose["wait"] = true })
	n.serve(t, "alice")
	fake.set(func() {
		if fake.lose["wait"] {
			t.Error("no answer was lost: nothing was tested")
		}
	})
	if starts, bad := fake.done("start"), fake.wrong(); len(starts) != 3 || len(bad) > 0 {
		t.Errorf("starts %q, problems %q", starts, bad)
	}
}

// TestInitStepOfACrashedAgentIsKilledByTheNext: its container is not a session.
func TestInitStepOfACrashedAgentIsKilledByTheNext(t *testing.T) {
	mem, fake := memstore.New(1000), newFakeEngine(t)
	t.Cleanup(fake.close)
	fake.stepTakes = -1
	lease, _, err := mem.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	o, err := mem.Claim(t.Context(), holdfast.Owner{Key: "alice", Node: "n1", State: holdfast.Claimed}, lease)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := anywhere(t)
	tmpl.Steps = []Step{{Name: "slow", Timeout: time.Hour}}
	o.State = holdfast.Starting
	if o, err = mem.Advance(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	id, err := fake.Create(t.Context(), tmpl.specs(o)[0])
	if err == nil {
		err = fake.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	deadman := &recorder{fake: fake}
	n := newNode(t, setup{id: "n1", store: mem, engine: fake, dead: deadman, cfg: Config{Templates: []Template{tmpl}}})
	if running := fake.running(); len(running) > 0 {
		t.Errorf("containers still run: %v", running)
	}
	n.empty(t)
	if orders := fake.done(""); !slices.Contains(orders, "forget "+id) {
		t.Errorf("orders %q", orders)
	}
}

func TestDeadmanIsToldOfInitSteps(t *testing.T) {
	fake := newFakeEngine(t)
	t.Cleanup(fake.close)
	fake.stepTakes = 50 * time.Millisecond
	tmpl := anywhere(t)
	tmpl.Steps = []Step{{Name: "first", Timeout: time.Minute}}
	n := newNode(t, setup{engine: fake, dead: &recorder{fake: fake}, cfg: Config{Templates: []Template{tmpl}}})
	id := n.serve(t, "alice").ContainerID
	orders := fake.done("")
	_, step, _ := strings.Cut(orders[0], " ")
	want := []string{"expect " + step, "start " + step, "hold " + step, "forget " + step, "expect " + id, "start " + id, "hold " + id}
	if !slices.Equal(orders, want) {
		t.Errorf("got %q, want %q", orders, want)
	}
}

// TestDataGoesFromSnapshotToInitStep moves a session's data over the host: the snapshot
// saves it after the container's end, and the init step loads it before the next start.
func TestDataGoesFromSnapshotToInitStep(t *testing.T) {
	saved := t.TempDir()
	tmpl := web()
	tmpl.Mounts = []engine.Mount{{Type: "volume", Target: "/work"}, {Type: "bind", Source: saved, Target: "/saved"}}
	tmpl.Steps = []Step{shell("fetch", "cat /saved/{key} > /work/data 2>/dev/null; echo epoch $HOLDFAST_EPOCH >> /work/data; cp /work/data /saved/working")}
	tmpl.Snapshot = Snapshot{Command: []string{"/bin/mv", filepath.Join(saved, "working"), filepath.Join(saved, "{key}")}, Timeout: time.Minute}
	n := newNode(t, setup{cfg: Config{Templates: []Template{tmpl}}})
	var want string
	for range 3 {
		r := n.serve(t, "alice")
		want += "epoch " + itoa(r.Epoch) + "\n"
		report, err := n.Stop(t.Context(), "alice")
		if err != nil || report.Notice != "" {
			t.Fatalf("%+v, %v", report, err)
		}
		if got, err := os.ReadFile(filepath.Join(saved, "alice")); err != nil || string(got) != want {
			t.Errorf("saved %q, %v, want %q", got, err, want)
		}
	}
	n.empty(t)
}
