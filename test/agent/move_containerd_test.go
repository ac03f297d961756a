package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/platform/runsc"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// On containerd a session keeps its process and memory in a move, in a drain of its node, and
// in a suspend; its client keeps the socket. Its memory is restored in sandboxes that wait. Each node has a namespace and a network of its
// own on one containerd.
func TestMoveOnContainerd(t *testing.T) {
	if !labtest.Long() && !labtest.OnContainerd() {
		t.Skip("the engine's conformance has the parts; -long or -on-containerd has all of it")
	}
	dir := t.TempDir()
	m := &mover{t: t, runsc: runsc.Runtime{Program: labtest.Runsc(t), Images: filepath.Join(dir, "staged")}, script: filepath.Join(dir, "runtime")}
	if err := os.Mkdir(m.runsc.Images, 0o700); err != nil {
		t.Fatal(err)
	}
	hosts := newFleetWith(t, func(int) string { return "" }, map[string]string{"boxed": m.script}, 2, patient, func(int) string { return m.config("", "    warm: 1\n") }, (*host).start)
	for _, h := range hosts {
		h.sandboxes("1")
	}
	first := hosts[0].ask("a")
	from, _ := owner(t, hosts, "a")
	to := besides(hosts, from)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+to.gateway+"/s/a/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	goesOn := func(on *host, init int) {
		t.Helper()
		if _, got, err := ws.Read(ctx); err != nil || string(got) != "moved" {
			t.Fatalf("the socket answered %q, %v", got, err)
		}
		if again := on.ask("a"); again.Epoch != first.Epoch || alive(init) {
			t.Errorf("the process was started with epoch %s, and is not that of %s; the old process is alive: %v", again.Epoch, first.Epoch, alive(init))
		}
		if _, node := on.record("a"); node != on.node {
			t.Errorf("the session is on %s, not on %s", node, on.node)
		}
	}

	init := from.inits()["a"]
	var out string
	poll.Until(t, "the other node is known to accept sessions", func() bool {
		r := to.cli("session", "move", "a", "--to", to.node)
		out = r.out
		return r.code == 0
	})
	if !strings.Contains(out, "with its memory") {
		t.Errorf("the command printed %q", out)
	}
	goesOn(to, init)

	init = to.inits()["a"]
	if out := to.must("node", "drain", to.node); !strings.Contains(out, "memory: saved of 1 session of 1") {
		t.Errorf("the report:\n%s", out)
	}
	goesOn(from, init)
	ws.CloseNow() // otherwise it would resume the session

	if out := from.must("session", "suspend", "a"); !strings.Contains(out, "a is suspended: ") {
		t.Errorf("the command printed %q", out)
	}
	from.sandboxes("1")
	from.goesOn(first)
	if !from.inSandbox("a") {
		t.Error("it was not restored in a sandbox")
	}
	from.must("session", "stop", "a")
	for _, h := range hosts {
		h.must("agent", "stop")
	}
	m.expectNothingLeft()
	poll.Until(t, "no container is left", func() bool { return len(from.containers()) == 0 && len(to.containers()) == 0 })
}
