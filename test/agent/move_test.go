package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/lab"
	"holdfast/internal/lab/labtest"
	"holdfast/internal/runsc"
)

// TestMove: a session's process goes on on another node when its own is drained,
// with what it had in memory, and its client's socket stays.
func TestMove(t *testing.T) {
	dir := t.TempDir()
	staged, script := filepath.Join(dir, "staged"), filepath.Join(dir, "runtime")
	if err := os.Mkdir(staged, 0o700); err != nil {
		t.Fatal(err)
	}
	boxed := runsc.Runtime{Program: labtest.Runsc(t), Images: staged}
	if err := boxed.Install(script); err != nil {
		t.Fatal(err)
	}
	private := labtest.Private(t, lab.Options{Args: []string{"--add-runtime=boxed=" + script}})
	config := fmt.Sprintf("moving: {runsc: %s, runtime: %s, staged: %s}\ntemplates:%s", boxed.Program, script, staged,
		strings.TrimRight(template, "\n")) + `
    runtime: boxed
    handover: memory
    websocket: keep
    kept_sockets: {time: 2m, tell: moved}
`
	hosts := newFleetOn(t, private.Host(), 2, patient, func(int) string { return config }, (*host).start)
	first := hosts[0].ask("a")
	leaving, before := owner(t, hosts, "a")
	near := besides(hosts, leaving)[0]
	if first.Epoch != strconv.FormatInt(int64(before.Epoch), 10) {
		t.Fatalf("it says epoch %s, its record %d", first.Epoch, before.Epoch)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+near.gateway+"/s/a/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	init := leaving.inits()["a"]
	t.Log(near.must("node", "drain", leaving.node))
	if _, got, err := ws.Read(ctx); err != nil || string(got) != "moved" {
		t.Fatalf("the socket says %q, %v", got, err)
	}
	if err := ws.Write(ctx, websocket.MessageText, []byte("still here")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := ws.Read(ctx); err != nil || string(got) != "still here" {
		t.Fatalf("the socket says %q, %v", got, err)
	}
	now, after := owner(t, hosts, "a")
	if now != near || after.Epoch <= before.Epoch || alive(init) {
		t.Errorf("%v became %v; the old one lives: %v", before, after, alive(init))
	}
	// The process still has the environment that it was started with.
	if again := near.ask("a"); again.Epoch != first.Epoch {
		t.Errorf("it was started with epoch %s, and is another process than that of %s", again.Epoch, first.Epoch)
	}
	if left, err := os.ReadDir(staged); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}
