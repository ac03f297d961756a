package client_test

import (
	"context"
	"errors"
	"fmt"
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
	rep, err := c.Replace(ctx, api.ReplaceRequest{All: true}, func(ev api.ReplaceEvent) {
		if ev.Began != nil {
			told = append(told, "begun "+string(ev.Began.Key))
		} else {
			told = append(told, "ended "+string(ev.Ended.Key))
		}
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
	_, err := c.Replace(ctx, api.ReplaceRequest{All: true}, func(api.ReplaceEvent) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	stop() // waits for running replacements
	past, err := b.Replacements(0)
	if err != nil || len(past) != 1 || past[0].Key != "alice" {
		t.Errorf("%+v, %v", past, err)
	}
}

// A group's replacement: its phases are told, with what the command caught_up prints.
func TestReplaceGroup(t *testing.T) {
	b := started(t, "db-0", "alice")
	b.SetGroups(holdfast.Group{Name: "db", Replicas: []holdfast.Replica{{Key: "db-0", State: holdfast.ReplicaServing, Epoch: 1}}})
	c, _ := agent(t, b)
	ctx := within(t)
	var told []string
	rep, err := c.Replace(ctx, api.ReplaceRequest{Keys: []holdfast.SessionKey{"db"}}, func(ev api.ReplaceEvent) {
		switch {
		case ev.Began != nil:
			told = append(told, "begun "+string(ev.Began.Key))
		case ev.Progress != nil:
			told = append(told, fmt.Sprintf("%s for %s: %s, %s", ev.Progress.Key, ev.Progress.Old, ev.Progress.Phase, ev.Progress.Text))
		case ev.Ended != nil:
			told = append(told, "ended "+string(ev.Ended.Key))
		}
	})
	if err != nil || len(rep.Rows) != 1 || rep.Failed() != 0 || rep.Rows[0].Replica.Old != "db-0" {
		t.Errorf("%+v, %v", rep, err)
	}
	if got := strings.Join(told, "; "); got != "begun db-1; db-1 for db-0: catching-up, 12 s behind; ended db-1" {
		t.Errorf("told %s", got)
	}
	for _, keys := range [][]holdfast.SessionKey{{"db", "alice"}, {"alice", "db-0"}} {
		if _, err := c.Replace(ctx, api.ReplaceRequest{Keys: keys}, nil); err == nil || err.(*api.Error).Code != api.CodeBadRequest {
			t.Errorf("%v: %v", keys, err)
		}
	}
	if _, err := c.Replace(ctx, api.ReplaceRequest{Keys: []holdfast.SessionKey{"alice"}, MaxUnavailable: 1}, nil); err == nil {
		t.Error("max_unavailable without a group was taken")
	}
	rep, err = c.Replace(ctx, api.ReplaceRequest{Keys: []holdfast.SessionKey{"db"}, MaxUnavailable: 1}, func(api.ReplaceEvent) {})
	if err != nil || len(rep.Rows) != 1 || rep.Rows[0].Key != "db-0" || rep.Rows[0].Replica != nil {
		t.Errorf("the old way: %+v, %v", rep, err)
	}
	if err := c.StopReplacing(ctx, "db"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("without a replacement: %v", err)
	}
	if _, err := c.StartSession(ctx, "db-7", ""); err == nil || err.(*api.Error).Code != api.CodeBadRequest {
		t.Errorf("starting a key of the group: %v", err)
	}
	s, err := c.Session(ctx, "db-0")
	if err != nil || s.Group != "db" || s.Rotation != holdfast.ReplicaServing {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := c.Session(ctx, "db"); !errors.Is(err, holdfast.ErrNotFound) || !strings.Contains(holdfast.HintOf(err), "db-0") {
		t.Errorf("the group as a session: %v, hint %q", err, holdfast.HintOf(err))
	}
}
