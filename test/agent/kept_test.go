package agent

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// A WebSocket stays open while its session moves to the node of the client's gateway, and
// while its container is killed.
func TestKeptSocket(t *testing.T) {
	keeping := "templates:" + strings.TrimRight(template, "\n") + `
    websocket: keep
    kept_sockets: {time: 2m, tell: moved}
`
	hosts := newFleet(t, 2, patient, keeping)
	hosts[0].ask("a")
	leaving, _ := owner(t, hosts, "a")
	near := besides(hosts, leaving)[0]

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+near.gateway+"/s/a/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	expect := func(want string) {
		t.Helper()
		if _, got, err := ws.Read(ctx); err != nil || string(got) != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	echo := func(text string) {
		t.Helper()
		if err := ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		expect(text)
	}
	echo("one")
	near.must("node", "drain", leaving.node)
	expect("moved")
	echo("two")
	if now, _ := owner(t, hosts, "a"); now != near {
		t.Fatalf("the session is on %s", now.node)
	}
	if err := syscall.Kill(near.inits()["a"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	expect("moved")
	echo("three")
	if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}
