package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/platform/runsc"
	"holdfast/test/lab"
	"holdfast/test/lab/echoserver"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// mover is an engine whose runtime "boxed" can restore memory.
type mover struct {
	t      *testing.T
	engine *lab.Engine
	runsc  runsc.Runtime
	script string
}

func newMover(t *testing.T) *mover {
	t.Helper()
	return newMoverWith(t, labtest.Runsc(t))
}

// newMoverWith is newMover with another program instead of runsc.
func newMoverWith(t *testing.T, program string) *mover {
	t.Helper()
	dir := t.TempDir()
	m := &mover{t: t, runsc: runsc.Runtime{Program: program, Images: filepath.Join(dir, "staged")}, script: filepath.Join(dir, "runtime")}
	if err := os.Mkdir(m.runsc.Images, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.runsc.Install(m.script); err != nil {
		t.Fatal(err)
	}
	m.engine = labtest.Private(t, lab.Options{Args: []string{"--add-runtime=boxed=" + m.script}})
	return m
}

// fleet starts two nodes, one with session a. moving and more are additional configuration;
// "%d" is the number of the node.
func (m *mover) fleet(t *testing.T, moving, more string) (leaving, near *host, first echoserver.Reply) {
	t.Helper()
	hosts := newFleetOn(t, m.engine.Host(), 2, patient, func(i int) string {
		return m.config(moving, strings.ReplaceAll(more, "%d", fmt.Sprint(i)))
	}, (*host).start)
	first = hosts[0].ask("a")
	leaving, _ = owner(t, hosts, "a")
	return leaving, besides(hosts, leaving)[0], first
}

func (m *mover) config(moving, more string) string {
	return fmt.Sprintf("moving: {runsc: %s, runtime: %s, staged: %s%s}\ntemplates:%s", m.runsc.Program, m.script, m.runsc.Images, moving,
		strings.TrimRight(template, "\n")) + `
    runtime: boxed
    handover: memory
    websocket: keep
    kept_sockets: {time: 2m, tell: moved}
` + more
}

func (m *mover) expectNothingLeft() {
	m.t.Helper()
	if left, err := os.ReadDir(m.runsc.Images); err != nil || len(left) != 0 {
		m.t.Errorf("%v are left, %v", left, err)
	}
}

// In a drain a session moves to another node with its process and memory, and its client
// keeps the socket.
func TestMove(t *testing.T) {
	m := newMover(t)
	leaving, near, first := m.fleet(t, "", "    network: pooled\n")
	if at := leaving.inspect("a").Addresses; len(at) != 1 || !strings.HasPrefix(at[0], "10.172.") {
		t.Errorf("the session has %v: no network of Holdfast's", at)
	}
	before, _ := leaving.record("a")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+near.gateway+"/s/a/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	init := leaving.inits()["a"]
	if out := near.must("node", "drain", leaving.node); !strings.Contains(out, "memory: saved of 1 session of 1") {
		t.Errorf("the report:\n%s", out)
	}
	if _, got, err := ws.Read(ctx); err != nil || string(got) != "moved" {
		t.Fatalf("the socket answered %q, %v", got, err)
	}
	if err := ws.Write(ctx, websocket.MessageText, []byte("still here")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := ws.Read(ctx); err != nil || string(got) != "still here" {
		t.Fatalf("the socket answered %q, %v", got, err)
	}
	after, on := near.record("a")
	if on != near.node || after <= before || alive(init) {
		t.Errorf("epoch %d became %d on %s; the old process is alive: %v", before, after, on, alive(init))
	}
	// The process still has the environment of its start.
	if again := near.ask("a"); again.Epoch != first.Epoch {
		t.Errorf("the process was started with epoch %s, and is not that of %s", again.Epoch, first.Epoch)
	}
	if near.metric(`holdfast_session_restores_total{outcome="ok"}`) != "1" {
		t.Error("no restore is counted")
	}
	m.expectNothingLeft()
}

// A session whose move fails boots fresh.
func TestMoveFails(t *testing.T) {
	labtest.NeedLong(t, "TestMoveKilled has a session that boots fresh")
	m := newMover(t)
	for name, c := range map[string]struct{ moving, more, says string }{
		"too big":      {", max_image: 1KiB", "", "the memory of session a is lost"},
		"other mounts": {"", "    mounts: [{type: tmpfs, target: /tmp/of-%d}]\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			leaving, near, first := m.fleet(t, c.moving, c.more)
			init := leaving.inits()["a"]
			out := near.must("node", "drain", leaving.node)
			if !strings.Contains(out, c.says) {
				t.Errorf("the report does not contain %q:\n%s", c.says, out)
			}
			again := near.ask("a")
			if again.Epoch == first.Epoch || alive(init) {
				t.Errorf("epoch %s became %s; the old process is alive: %v", first.Epoch, again.Epoch, alive(init))
			}
			if epoch, _ := near.record("a"); again.Epoch != fmt.Sprint(epoch) {
				t.Errorf("it is of epoch %s, its record of %d", again.Epoch, epoch)
			}
			m.expectNothingLeft()
		})
	}
}

// record returns the epoch of a session, and its node.
func (h *host) record(key string) (epoch int64, node string) {
	h.t.Helper()
	for _, s := range h.sessions() {
		if string(s.Key) == key {
			return int64(s.Epoch), string(s.Node)
		}
	}
	h.t.Fatalf("no node has session %s", key)
	return 0, ""
}

// `holdfast session move` moves a session with its memory to the named node, and its client
// keeps the socket. An impossible move is refused and does not affect the session.
func TestMoveByHand(t *testing.T) {
	labtest.NeedLong(t, "TestMove moves a session in a drain")
	m := newMover(t)
	leaving, near, first := m.fleet(t, "", "")
	init := leaving.inits()["a"]
	for to, want := range map[string]struct {
		code        int
		error, hint string
	}{
		leaving.node: {2, "already", "name another node"},
		"nowhere":    {5, "no such node", "node ls"},
	} {
		wantError(t, near.cli("session", "move", "a", "--to", to), want.code, want.error, want.hint)
	}
	near.must("node", "cordon")
	poll.Until(t, "the other node sees the cordon", func() bool { return leaving.cli("session", "move", "a", "--to", near.node).code == 8 })
	if r := leaving.cli("session", "move", "a"); r.code != 8 {
		t.Errorf("without a node that accepts it: exit code %d\n%s", r.code, r.err)
	}
	if now := leaving.inits()["a"]; now != init {
		t.Fatalf("a refused move ended process %d; the process is now %d", init, now)
	}
	near.must("node", "uncordon")

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+near.gateway+"/s/a/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	var out string
	poll.Until(t, "the other node is known to accept sessions", func() bool {
		r := near.cli("session", "move", "a", "--to", near.node)
		out = r.out
		return r.code == 0
	})
	if !strings.Contains(out, "from "+leaving.node+" to "+near.node) || !strings.Contains(out, "with its memory") {
		t.Errorf("the command printed %q", out)
	}
	if _, got, err := ws.Read(ctx); err != nil || string(got) != "moved" {
		t.Errorf("the socket answered %q, %v", got, err)
	}
	if again := near.ask("a"); again.Epoch != first.Epoch || alive(init) {
		t.Errorf("the process was started with epoch %s, and is not that of %s; the old process is alive: %v", again.Epoch, first.Epoch, alive(init))
	}
	m.expectNothingLeft()
}

// Sessions are handed over to nodes with their runtime, with their memory.
func TestNodeThatCannotRunIt(t *testing.T) {
	labtest.NeedLong(t, "three nodes with gVisor")
	m := newMover(t)
	hosts := newFleetOn(t, m.engine.Host(), 3, patient, func(i int) string {
		if i == 2 { // the same template, with a runtime that this node does not have
			return strings.Replace(m.config("", ""), "runtime: boxed", "runtime: not-here", 1)
		}
		return m.config("", "")
	}, (*host).start)
	lacks := hosts[2]
	poll.Until(t, "the node reports the missing runtime", func() bool { return lacks.metric(`holdfast_runtime_works{runtime="not-here"}`) == "0" })
	first := hosts[0].ask("a")
	for range 3 { // placement is random
		from, _ := owner(t, hosts, "a")
		r := from.cli("session", "move", "a", "--to", lacks.node)
		if r.code != 5 || !strings.Contains(r.err, "cannot run") {
			t.Errorf("exit code %d: %s", r.code, r.err)
		}
		if out := from.must("session", "move", "a"); !strings.Contains(out, "with its memory") {
			t.Errorf("the command printed %q", out)
		}
		if again := hosts[0].ask("a"); again.Epoch != first.Epoch {
			t.Fatal("its memory is lost")
		}
	}
}
