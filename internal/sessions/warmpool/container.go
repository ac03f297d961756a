package warmpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/nsmount"
	"holdfast/internal/sessions/kill"
)

// Container is a warm container. Its methods are for one goroutine.
type Container struct {
	id, name, address string
	label             string // its directory, and the value of Label
	dir               string // of this host
	image             string // id; "" for one that is to be ended. Guarded by Pool.mu
	target            *kill.Target
	talk              *talk
}

// ID is the engine's.
func (c *Container) ID() string { return c.id }

// Name is what the engine calls it.
func (c *Container) Name() string { return c.name }

// Address is host:port of its server.
func (c *Container) Address() string { return c.address }

// Target is the handle on its init, held by the deadman where there is one.
func (c *Container) Target() *kill.Target { return c.target }

// Names of what a container finds in Dir.
const (
	FileName   = "session.json"
	SocketName = "session.sock"
)

// Assign attaches the mounts, tells the container who it is, lets it run, and returns
// when its program has heard it, if that listens on the socket. told reports, after
// an error, whether the program may have heard: if not, the container may be given up
// for another one. Mounts other than binds are an error.
func (c *Container) Assign(ctx context.Context, i holdfast.Identity, mounts []engine.Mount) (told bool, err error) {
	defer c.talk.close()
	if err := c.attach(mounts); err != nil {
		return false, err
	}
	text, err := json.Marshal(i)
	if err != nil {
		return false, err
	}
	text = append(text, '\n')
	if err := atomicfile.WriteNoSync(filepath.Join(c.dir, FileName), text, 0o644); err != nil {
		return false, err
	}
	c.talk.send(text)
	if err := c.thaw(); err != nil {
		return true, err
	}
	if err := c.talk.heard(ctx, c.target); err != nil {
		return true, fmt.Errorf("telling the container who it is: %w", err)
	}
	return true, nil
}

func (c *Container) attach(mounts []engine.Mount) error {
	var list []nsmount.Mount
	for _, m := range mounts {
		if m.Type != "bind" {
			return fmt.Errorf("a mount of type %s cannot be attached to a container that runs", m.Type)
		}
		list = append(list, nsmount.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	if len(list) == 0 {
		return nil
	}
	if err := nsmount.Attach(c.target.Pid(), list); err != nil {
		return err
	}
	if c.target.Init().Exited() { // the pid may have been another's
		return errors.New("the container ended")
	}
	return nil
}

// freezer is the container's control group that can be frozen.
func (c *Container) freezer() (cgroup.Group, error) {
	for _, g := range c.target.Groups() {
		if g.V2 || g.Has("freezer") {
			return g, nil
		}
	}
	return cgroup.Group{}, errors.New("the container is in no control group with a freezer")
}

func (c *Container) freeze() error {
	g, err := c.freezer()
	if err != nil {
		return err
	}
	return g.Freeze(freezeTimeout)
}

func (c *Container) thaw() error {
	g, err := c.freezer()
	if err != nil {
		return err
	}
	return g.Thaw()
}

// connectGrace is how long a program has, once it answers, to connect to the socket.
// One that does not is taken for one that reads the file.
const connectGrace = time.Second
