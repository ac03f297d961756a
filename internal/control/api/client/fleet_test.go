package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

// A node makes its own connections to another node.
func TestOverADialer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "peer")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	stop := serveOn(t, l, api.New(started(t, "alice").Parts(), api.Options{Peer: func(*http.Request) holdfast.NodeID { return "n2" }}))
	dials := 0
	c := dial(t, client.Options{Name: "node n1", URL: "https://not.used", Dial: func(ctx context.Context) (net.Conn, error) {
		dials++
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}})
	ctx := within(t)
	if s, err := c.StopSession(ctx, "alice"); err != nil || len(s.Dead) != 1 || dials != 1 {
		t.Errorf("%+v, %v, %d connections", s, err, dials)
	}
	stop()
	if _, err := c.Nodes(ctx); !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "node n1") || strings.Contains(err.Error(), "not.used") {
		t.Errorf("when it is gone: %v", err)
	}
}

func TestReplace(t *testing.T) {
	b := started(t, "alice", "bob", "stuck", "zoe")
	c, _ := agent(t, b)
	ctx := within(t)
	var told []string
	rep, err := c.Replace(ctx, api.ReplaceRequest{All: true}, func(ended bool, r holdfast.Replacement) {
		told = append(told, map[bool]string{false: "begun ", true: "ended "}[ended]+string(r.Key))
	})
	if err != nil || len(rep.Rows) != 3 || rep.Failed() != 1 || len(rep.Unbegun) != 1 || rep.Unbegun[0] != "zoe" {
		t.Errorf("%+v, %v", rep, err)
	}
	if got := strings.Join(told, ", "); got != "begun alice, ended alice, begun bob, ended bob, begun stuck, ended stuck" {
		t.Errorf("told %s", got)
	}
	past, err := c.Replacements(ctx, "", 2)
	if err != nil || len(past) != 2 || past[0] != rep.Rows[2] || past[1] != rep.Rows[1] {
		t.Errorf("%+v, %v", past, err)
	}
	if again, err := c.Replacements(ctx, "n1", 0); err != nil || len(again) != 3 || again[0] != past[0] {
		t.Errorf("by name: %+v, %v", again, err)
	}
	b.SetFault(holdfast.ErrBusy)
	if _, err := c.Replace(ctx, api.ReplaceRequest{All: true}, nil); !errors.Is(err, holdfast.ErrBusy) {
		t.Error(err)
	}
}

// When the caller disconnects, the agent begins no more replacements.
func TestReplaceEndsWithItsCaller(t *testing.T) {
	b := started(t, "alice", "bob")
	b.Gate = make(chan struct{}) // the gate stays closed: only the end of the request lets alice continue
	c, stop := agent(t, b)
	ctx, cancel := context.WithCancel(within(t))
	_, err := c.Replace(ctx, api.ReplaceRequest{All: true}, func(bool, holdfast.Replacement) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	stop() // waits for running replacements
	past, err := b.Replacements(0)
	if err != nil || len(past) != 1 || past[0].Key != "alice" {
		t.Errorf("%+v, %v", past, err)
	}
}
