package session

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/frozen"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// sleepy returns a node whose sessions sleep.
func sleepy(t *testing.T, s setup, how Sleep) *node {
	t.Helper()
	kind := web()
	kind.Sleep = how
	notes, err := frozen.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Templates, s.cfg.Frozen = []Template{kind}, notes
	return newNode(t, s)
}

func (n *node) freezer(t *testing.T, key holdfast.SessionKey) cgroup.Group {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	g, err := n.sessions[key].target.Freezer()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func isFrozen(t *testing.T, g cgroup.Group) bool {
	t.Helper()
	is, err := g.Frozen()
	if err != nil {
		t.Fatal(err)
	}
	return is
}

func (n *node) awaitSleep(t *testing.T, key holdfast.SessionKey) holdfast.Sleep {
	t.Helper()
	var s holdfast.Sleep
	poll.Until(t, "the session sleeps", func() bool {
		i, err := n.Get(key)
		if err != nil || i.Sleep == nil {
			t.Fatalf("%+v, %v", i, err)
		}
		s = *i.Sleep
		return !s.Since.IsZero() && s.Memory > 0
	})
	return s
}

func get(t *testing.T, r holdfast.Route) {
	t.Helper()
	c := http.Client{Timeout: 20 * time.Second}
	resp, err := c.Get("http://" + r.Address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// A session that is not used is frozen, and each use wakes it. It ends like any other,
// and with the agent its sleep ends.
func TestSleep(t *testing.T) {
	n := sleepy(t, setup{}, Sleep{After: 200 * time.Millisecond})
	r, release, err := n.Acquire(t.Context(), "a", "")
	if err != nil {
		t.Fatal(err)
	}
	group := n.freezer(t, "a")
	time.Sleep(300 * time.Millisecond) // longer than it takes to fall asleep
	if i, _ := n.Get("a"); isFrozen(t, group) || i.Sleep.Sleeps != 0 {
		t.Errorf("frozen while it is used: %+v", i.Sleep)
	}
	release()
	if s := n.awaitSleep(t, "a"); s.Sleeps != 1 || s.WokenBy != "" || !isFrozen(t, group) {
		t.Errorf("%+v", s)
	}
	if n.asleep() != 1 {
		t.Errorf("%d sessions sleep", n.asleep())
	}

	_, release, err = n.Hold("a", r.Epoch)
	if err != nil {
		t.Fatal(err)
	}
	get(t, r)
	if i, _ := n.Get("a"); isFrozen(t, group) || !i.Sleep.Since.IsZero() || i.Sleep.WokenBy != holdfast.WokenByRequest {
		t.Errorf("%+v", i.Sleep)
	}
	release()
	n.awaitSleep(t, "a")
	release, err = n.Use("a", holdfast.WokenByExec)
	if i, _ := n.Get("a"); err != nil || isFrozen(t, group) || i.Sleep.WokenBy != holdfast.WokenByExec || i.Sleep.Sleeps != 2 {
		t.Errorf("%+v, %v", i.Sleep, err)
	}
	release()
	n.awaitSleep(t, "a")
	if report, err := n.Stop(t.Context(), "a"); err != nil || len(report.Dead) != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	n.empty(t)

	if _, err := n.Start(t.Context(), "b", ""); err != nil {
		t.Fatal(err)
	}
	n.awaitSleep(t, "b")
	group = n.freezer(t, "b")
	n.end()
	if isFrozen(t, group) {
		t.Error("it is frozen although no agent runs that could wake it")
	}
}

// With ByData an open connection counts only while it carries data.
func TestSleepByData(t *testing.T) {
	const after = time.Second // the first request below comes sooner after the data
	n := sleepy(t, setup{}, Sleep{After: after, ByData: true})
	r, release, err := n.Acquire(t.Context(), "a", "")
	if err != nil {
		t.Fatal(err)
	}
	r.Activity.ByData(false)
	r.Activity.ByData(false) // changes nothing
	n.awaitSleep(t, "a")
	if r.Activity.Control() {
		t.Error("it sleeps, and is said to answer a Ping")
	}
	r.Activity.Data(holdfast.WokenByWebSocket)
	poll.Until(t, "it is awake", func() bool { return n.asleep() == 0 })
	get(t, r)
	poll.Until(t, "the reason is known", func() bool { i, _ := n.Get("a"); return i.Sleep.WokenBy == holdfast.WokenByWebSocket })
	_, other, err := n.Acquire(t.Context(), "a", "") // a request beside the connection
	if err != nil {
		t.Fatal(err)
	}
	release() // what had ended its use before ends no other one
	time.Sleep(after + 100*time.Millisecond)
	held, _ := n.Get("a")
	if n.asleep() != 0 || held.Connections != 1 {
		t.Errorf("%d sleep, %+v", n.asleep(), held)
	}
	other()
	if s := n.awaitSleep(t, "a"); s.Sleeps != held.Sleep.Sleeps+1 {
		t.Errorf("%+v, before %+v", s, held.Sleep)
	}
}

// A container that another program has paused stays paused.
func TestPausedDoesNotSleep(t *testing.T) {
	n := sleepy(t, setup{}, Sleep{After: 100 * time.Millisecond})
	_, release, err := n.Acquire(t.Context(), "a", "")
	if err != nil {
		t.Fatal(err)
	}
	group := n.freezer(t, "a")
	if err := group.Freeze(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	release()
	poll.Until(t, "its sleep has failed", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return !n.sessions["a"].sleeper.notBefore.IsZero()
	})
	if _, release, err = n.Acquire(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	defer release()
	if i, _ := n.Get("a"); !isFrozen(t, group) || i.Sleep.Sleeps != 0 || i.Sleep.WokenBy != "" {
		t.Errorf("%+v", i.Sleep)
	}
	if err := group.EndFreeze(); err != nil {
		t.Error(err)
	}
}

// What an agent has frozen that was killed together with its guardian, the next agent
// thaws.
func TestNextAgentThaws(t *testing.T) {
	s := setup{store: memstore.New(1000)}
	first := sleepy(t, s, Sleep{After: time.Hour})
	if _, err := first.Start(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	group := first.freezer(t, "a")
	first.end()
	root := t.TempDir()
	dead := filepath.Join(root, "1-1") // no process has started at that time
	if err := errors.Join(os.Mkdir(dead, 0o700), os.WriteFile(filepath.Join(dead, "a"), []byte(group.FreezerFile()), 0o600),
		os.WriteFile(filepath.Join(dead, "cut"), []byte("/sys/fs/cg"), 0o600), group.Freeze(10*time.Second)); err != nil {
		t.Fatal(err)
	}
	notes, err := frozen.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Frozen = notes
	next := newNode(t, s)
	poll.Until(t, "it is thawed", func() bool { return !isFrozen(t, group) })
	get(t, next.serve(t, "a"))
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}
