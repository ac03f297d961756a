package session

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"holdfast"
)

// commandsOf tells what detached commands a session has.
type commandsOf struct {
	mu      sync.Mutex
	running bool
	ended   time.Time
	err     error
}

func (c *commandsOf) set(running bool, ended time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.ended, c.err = running, ended, err
}

func (c *commandsOf) last(_ context.Context, key holdfast.SessionKey) (time.Time, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case key != "alice":
		return time.Time{}, false, nil
	case c.running:
		return time.Now(), true, nil
	}
	return c.ended, false, c.err
}

// A session in which a command runs, or may run, is not idle: neither one that ends with
// its caller nor a detached one, also not one of an earlier agent. The idle time begins at
// the command's end.
func TestCommandsKeepASessionFromBeingIdle(t *testing.T) {
	const idle = 200 * time.Millisecond
	cmds := &commandsOf{}
	n, fake := fakeNode(t, setup{id: "n1", commands: cmds.last, cfg: Config{IdleStop: idle}})
	r := n.serve(t, "alice")
	// stays checks that alice runs when another session, which was used later, is stopped.
	stays := func(n *node, why string) {
		t.Helper()
		<-n.serve(t, "bob").Left
		select {
		case <-r.Left:
			t.Fatalf("stopped while %s", why)
		default:
		}
	}
	if _, err := n.Use("nobody", holdfast.WokenByExec); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("a command in no session: %v", err)
	}
	release, err := n.Use("alice", holdfast.WokenByExec)
	if err != nil {
		t.Fatal(err)
	}
	stays(n, "a command runs")
	if i, err := n.Get("alice"); err != nil || i.Connections != 0 || !i.IdleSince.IsZero() {
		t.Errorf("%+v, %v", i, err)
	}
	cmds.set(true, time.Time{}, nil)
	release()
	stays(n, "a detached command runs")
	cmds.set(false, time.Time{}, errors.New("the keeper hangs"))
	stays(n, "its commands are unknown")
	cmds.set(true, time.Time{}, nil)
	n.end()
	next := newNode(t, setup{id: "n1", engine: fake, store: n.store, commands: cmds.last, cfg: Config{Templates: n.cfg.Templates, IdleStop: idle}})
	r = next.serve(t, "alice")
	stays(next, "a detached command of an earlier agent runs")
	ended := time.Now()
	cmds.set(false, ended, nil)
	<-r.Left
	if after := time.Since(ended); after < idle {
		t.Errorf("stopped %v after the end of its last command", after)
	}
	next.empty(t)
}

// An adopted session is served and ended as its template says, and its container keeps
// its network.
func TestAdoptedSessionHasItsTemplate(t *testing.T) {
	kept := anywhere(t)
	kept.Name, kept.Network = "kept", ""
	kept.Ports, kept.Upgrades, kept.Keep = holdfast.Ports{List: []int{9000}}, []string{"h2c"}, &holdfast.KeepSockets{Time: time.Second, Buffer: 1}
	kept.SaveMemory, kept.SuspendIdle, kept.Priority = true, true, 3
	hosted := anywhere(t)
	hosted.Name = "hosted"
	cfg := Config{Templates: []Template{kept, hosted}}
	n, fake := fakeNode(t, setup{id: "n1", cfg: cfg})
	for key, template := range map[holdfast.SessionKey]string{"a": "kept", "b": "kept", "c": "hosted"} {
		if _, err := n.Start(t.Context(), key, template); err != nil {
			t.Fatal(err)
		}
	}
	n.end()
	hosted.Network, hosted.Ports = "", holdfast.Ports{All: true} // of later containers
	cfg = Config{Templates: []Template{kept, hosted}, IdleStop: 300 * time.Millisecond}
	mv := quickly()
	next := newNode(t, setup{id: "n1", engine: fake, store: n.store, mover: mv, cfg: cfg})
	r := next.serve(t, "a")
	if r.Keep == nil || len(r.Upgrades) != 1 || !r.Ports.Allows(9000) || r.Ports.Allows(9001) {
		t.Errorf("%+v", r)
	}
	if r := next.serve(t, "c"); !r.Ports.None() {
		t.Errorf("a container in the host's network has ports %+v", r.Ports)
	}
	if _, err := next.Suspend(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	next.empty(t) // b is suspended, c is stopped
	if notes := next.notes(t); len(notes) != 2 {
		t.Errorf("%d sessions are suspended", len(notes))
	}
}
