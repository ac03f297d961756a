package network

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/holder"
	"holdfast/internal/platform/linux/netns"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
)

// connectLimit bounds the time from the start of a holder until it has connected.
const connectLimit = 10 * time.Second

// hold is a holder: a container whose process enters the network namespaces that it is
// sent. While it is free it is at home, in a namespace without devices.
type hold struct {
	target        *kill.Target
	conn          *holder.Conn
	home          *os.File // the network namespace that it started in, without devices
	hosts, resolv string   // text of the engine's files
}

// stop ends the holder's process: it exits with its connection, and is killed in case that
// it is stopped or stuck.
func (h *hold) stop() {
	h.conn.Close()
	_ = h.target.Init().Signal(unix.SIGKILL) // it is no error if it is dead
}

// end is stop for a holder that no goroutine uses any more.
func (h *hold) end() {
	h.stop()
	h.home.Close()
	h.target.Close()
}

// makeHolder creates, starts and connects a holder. It returns the id of a container that
// has to be removed with an error.
//
// A holder joins the namespace of a free one, if there is one; boots cannot take that meanwhile, so it stays at
// home. When an agent is killed, all holders exit at the same moment. The engine then releases the network of the first
// one only: Docker before 23.0 may deadlock if it releases several in parallel (moby#46661).
func (p *Pool) makeHolder(ctx context.Context) (_ *hold, id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pool.EngineTimeout)
	defer cancel()
	name := "holdfast-holder-" + pool.NewID()
	dir := filepath.Join(p.cfg.Dir, "holders", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir) // the connection does not need the file any more
	seccomp, err := p.writeProfile()
	if err != nil {
		return nil, "", err
	}
	l, err := holder.Listen(dir)
	if err != nil {
		return nil, "", err
	}
	defer l.Close()
	network := "none"
	if beside := p.freeHolder(); beside != nil {
		defer p.release(beside)
		network = "container:" + beside.target.ID
	}
	id, err = p.with.Create(ctx, engine.Spec{
		Name: name, Image: Image, Labels: map[string]string{Label: string(p.cfg.Node), StoreLabel: p.cfg.Store},
		Network: network, Restart: engine.RestartNo, NoNewPrivileges: true, Seccomp: seccomp, ReadOnlyRoot: true,
		NoCapabilities: true, Capabilities: []string{"SYS_ADMIN"}, // setns(2)
		Mounts: []engine.Mount{{Type: "bind", Source: dir, Target: holder.Dir, ReadOnly: true}},
	}, p.load)
	if err != nil {
		return nil, "", err // a container that was created nevertheless is found by its label
	}
	h, err := p.startHolder(ctx, id, l)
	return h, id, err
}

func (p *Pool) startHolder(ctx context.Context, id string, l *holder.Listener) (_ *hold, err error) {
	_, target, err := p.with.Start(ctx, id)
	if err != nil {
		return nil, err
	}
	h := &hold{target: target}
	defer func() {
		if err != nil {
			target.Close()
		}
	}()
	if h.conn, err = l.Accept(target.Pid(), time.Now().Add(connectLimit)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.conn.Close()
		}
	}()
	if err := h.readFiles(); err != nil {
		return nil, fmt.Errorf("read the files of a holder: %w", err)
	}
	if h.home, err = os.Open(netns.OfProcess(target.Pid())); err != nil {
		return nil, err
	}
	if target.Init().Exited() { // the pid may belong to another process
		h.home.Close()
		return nil, fmt.Errorf("container %s has ended", target.Name)
	}
	return h, nil
}

// writeProfile writes the seccomp profile, which the engine's adapter reads.
func (p *Pool) writeProfile() (file string, err error) {
	file = filepath.Join(p.cfg.Dir, "holder-seccomp.json")
	text, err := profile()
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	return file, err
}
