package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/internal/sessions/session"
	"holdfast/test/lab/echoserver"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// count calls /count of a session.
func (h *host) count(key string) (c echoserver.Count) {
	h.t.Helper()
	res, body := h.get("/s/" + key + "/count")
	if err := json.Unmarshal([]byte(body), &c); err != nil || res.StatusCode != http.StatusOK {
		h.t.Fatalf("session %s answered %d %q", key, res.StatusCode, body)
	}
	return c
}

// child checks that a session goes on where its parent was at the number.
func (h *host) child(key string, number int) echoserver.Count {
	h.t.Helper()
	c := h.count(key)
	if c.Number != number+1 || c.File != strconv.Itoa(number) || c.Generation == "" {
		h.t.Errorf("session %s began with %+v, its parent was at %d", key, c, number)
	}
	return c
}

// snapshots returns the files of snapshots on a host.
func (h *host) snapshots() []string {
	h.t.Helper()
	found, err := filepath.Glob(filepath.Join(h.dir, "data", "suspended", "snapshot.*"))
	if err != nil {
		h.t.Fatal(err)
	}
	return found
}

// Children of a fork, and sessions from a snapshot, go on with the memory and files of their
// parent, on any node. The parent keeps its connections.
func TestFork(t *testing.T) {
	m := newMover(t)
	at, other, _ := m.fleet(t, "", "    fork: allowed\n    network: pooled\n  - name: plain\n    image: "+labtest.TestServer+"\n    port: 8080\n")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+other.gateway+"/s/a/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	for range 3 {
		at.count("a")
	}
	out := at.must("session", "fork", "a", "b", "c")
	if !strings.Contains(out, "a is copied: ") || strings.Count(out, "is ready on "+at.node) != 2 {
		t.Errorf("the command printed %q", out)
	}
	if err := ws.Write(ctx, websocket.MessageText, []byte("still here")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := ws.Read(ctx); err != nil || string(got) != "still here" {
		t.Fatalf("the parent's socket answered %q, %v", got, err)
	}
	generations := map[string]bool{}
	for _, key := range []string{"a", "b", "c"} {
		generations[other.child(key, 3).Generation] = true
	}
	if b := at.count("b"); b.Number != 5 || len(generations) != 3 {
		t.Errorf("b goes on with %+v; the generations are %v", b, generations)
	}
	if c := at.count("c"); c.Number != 5 {
		t.Errorf("c goes on with %+v, it is not alone in its memory", c)
	}
	epochs := map[holdfast.Epoch]bool{}
	for _, s := range at.sessions() {
		epochs[s.Epoch] = true
		if child := s.Key != "a"; child != (s.Parent == "a") || child && s.Memory != holdfast.Restored {
			t.Errorf("the record of %s has the parent %q and the memory %q", s.Key, s.Parent, s.Memory)
		}
	}
	if len(epochs) != 3 {
		t.Errorf("three sessions have the epochs %v", epochs)
	}
	if text := at.show("b"); !strings.Contains(text, "parent") {
		t.Errorf("b does not say of which session it is:\n%s", text)
	}

	if out := other.must("session", "snapshot", "a", "--name", "v1", "--expires", "1h"); !strings.Contains(out, "a is copied as v1: ") {
		t.Errorf("the command printed %q", out)
	}
	if out := other.must("session", "snapshots"); !strings.Contains(out, "v1") || !strings.Contains(out, at.node) {
		t.Errorf("the list:\n%s", out)
	}
	files := at.snapshots()
	if len(files) != 1 || at.metric("holdfast_snapshots") != "1" || at.metric("holdfast_suspended_images") != "0" {
		t.Errorf("%q, %s snapshots and %s images are counted", files, at.metric("holdfast_snapshots"), at.metric("holdfast_suspended_images"))
	} else if text, err := os.ReadFile(files[0]); err != nil || !strings.HasPrefix(string(text), "age-encryption.org/v1\n") || strings.Contains(string(text), "HOLDFAST_SESSION") {
		t.Errorf("the snapshot is not encrypted: %v", err)
	}
	other.count("a") // the snapshot does not have that
	at.must("session", "start", "d", "--from", "v1")
	at.child("d", 4)
	at.must("node", "cordon")
	poll.Until(t, "the other node sees the cordon", func() bool {
		for _, n := range other.nodes() {
			if string(n.ID) == at.node {
				return n.Draining
			}
		}
		return false
	})
	if out := other.must("session", "start", "e", "--from", "v1"); !strings.Contains(out, "e is ready") {
		t.Errorf("the command printed %q", out)
	}
	other.child("e", 4)
	if _, on := other.record("e"); on != other.node {
		t.Errorf("e is on %s", on)
	}
	at.must("node", "uncordon")

	wantError(t, other.cli("session", "snapshot", "a", "--name", "v1"), 1, "snapshot v1: it exists already", "snapshots rm v1")
	wantError(t, other.cli("session", "start", "e", "--from", "v1"), 1, "session e: it runs", "choose another key")
	wantError(t, other.cli("session", "fork", "a", "f", "e"), 1, "session e: it runs", "choose another key")
	wantError(t, other.cli("session", "fork", "a", "f", "f"), 2, "children has f twice", "")
	other.must("session", "start", "p", "--template", "plain")
	wantError(t, other.cli("session", "snapshot", "p", "--name", "v2"), 1, "template plain does not say fork: allowed", "docs/forking.md")
	wantError(t, other.cli("session", "fork", "p", "f"), 1, "template plain does not say fork: allowed", "docs/forking.md")
	at.must("session", "snapshots", "rm", "v1")
	wantError(t, other.cli("session", "start", "f", "--from", "v1"), 5, "snapshot v1: not found", "session snapshots")
	if left := at.snapshots(); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
	for _, s := range other.sessions() {
		if s.Key == "f" || s.State == holdfast.IsSuspended {
			t.Errorf("session %s is %s", s.Key, s.State)
		}
	}
	m.expectNothingLeft()

}

// A kill of the agent at any step of a fork costs at most the child. The parent goes on, no image
// or container is left, and no session runs twice.
func TestForkKilled(t *testing.T) {
	labtest.NeedLong(t, "TestFork has no faults, and the steps of a restore are those of TestMoveKilled")
	c := newMoveChaos(t)
	for _, step := range []string{"before-checkpoint", "after-checkpoint", "before-create", "before-restore", "after-restore"} {
		t.Run(step, func(t *testing.T) {
			parent, child := "of-"+step, "child-"+step
			at := c.hosts[0]
			number := at.count(parent).Number
			from, before := owner(t, c.hosts, parent)
			c.ask("hold-" + step)
			ended := make(chan result, 1)
			go func() { ended <- from.cli("session", "fork", parent, child) }()
			c.reached(t, step, nil, ended)
			from.signal(os.Kill)
			<-from.ended
			c.unask("hold-" + step)
			c.unask("at-" + step)
			from.start()
			r := <-ended
			t.Logf("the command ended with %d: %s%s", r.code, r.out, r.err)
			poll.Until(t, "no session boots", func() bool {
				for _, s := range from.sessions() {
					if s.State != holdfast.Ready && s.State != holdfast.IsSuspended {
						return false
					}
				}
				return true
			})
			if c := from.count(parent); c.Number != number+1 {
				t.Errorf("the parent was at %d, and is at %d", number, c.Number)
			}
			if epoch, on := from.record(parent); epoch != int64(before.Epoch) || on != from.node {
				t.Errorf("the parent was of epoch %d on %s, and is of %d on %s", before.Epoch, from.node, epoch, on)
			}
			// A child that is there is the parent's; otherwise a later connect boots a fresh one, at
			// the latest after the note of the killed agent has been used.
			for _, s := range from.sessions() {
				if string(s.Key) == child && s.State == holdfast.Ready {
					from.child(child, number)
				}
			}
			poll.Until(t, "the child's key can be used", func() bool {
				res, _ := from.get("/s/" + child + "/")
				return res.StatusCode == http.StatusOK
			})
			from.must("session", "stop", child)
			from.must("session", "stop", parent)
			c.watch.expectOneLife(t)
		})
	}
	c.expectNothingStaged()
	poll.Until(t, "no container of a session is left", func() bool {
		left, err := c.watch.engine.List(t.Context(), map[string]string{session.LabelTemplate: "web"})
		return err == nil && len(left) == 0
	})
}
