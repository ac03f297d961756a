package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/nsmount"
	"holdfast/internal/sessions/kill"
)

// Container is a warm container. One goroutine uses it.
type Container struct {
	id, name, address string
	label             string // name of its directory, and the value of Label
	dir               string // directory of this host
	image             string // id; "" if the container is to be ended. Guarded by Pool.mu
	target            *kill.Target
	socket            *socket    // nil for a sandbox
	network           netip.Addr // in a network of Deps.Networks
}

// ID is the engine's id of the container.
func (c *Container) ID() string { return c.id }

// Name is the engine's name of the container.
func (c *Container) Name() string { return c.name }

// Address is the host:port of its server.
func (c *Container) Address() string { return c.address }

// Network is its address in a network of the agent's; the zero value if it is in another one.
func (c *Container) Network() netip.Addr { return c.network }

// Dir is the directory of this host that the container sees at the package's Dir.
func (c *Container) Dir() string { return c.dir }

// Target is the handle of its init. The deadman, if there is one, holds it, too.
func (c *Container) Target() *kill.Target { return c.target }

// Names of the files in Dir.
const (
	FileName   = "session.json"
	SocketName = "session.sock"
)

// Assign attaches the mounts, sends the container its identity and thaws it. If its
// program listens on the socket, Assign waits for the answer. After an error, told
// reports whether the program may have received the identity; if not, another
// container may be used instead. Only bind mounts are supported. It is not for sandboxes.
func (c *Container) Assign(ctx context.Context, i holdfast.Identity, mounts []engine.Mount) (told bool, err error) {
	defer c.socket.close()
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
	c.socket.send(text)
	if err := c.thaw(); err != nil {
		return true, err
	}
	if err := c.socket.awaitAnswers(ctx, c.target); err != nil {
		return true, fmt.Errorf("sending the container its identity: %w", err)
	}
	return true, nil
}

func (c *Container) attach(mounts []engine.Mount) error {
	var list []nsmount.Mount
	for _, m := range mounts {
		if m.Type != "bind" {
			return fmt.Errorf("a mount of type %s cannot be attached to a running container", m.Type)
		}
		list = append(list, nsmount.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	if len(list) == 0 {
		return nil
	}
	if err := nsmount.Attach(c.target.Pid(), list); err != nil {
		return err
	}
	if c.target.Init().Exited() { // the pid may belong to another process
		return errors.New("the container ended")
	}
	return nil
}

func (c *Container) freeze() error {
	g, err := c.target.Freezer()
	if err != nil {
		return err
	}
	return g.Freeze(freezeTimeout)
}

func (c *Container) thaw() error {
	g, err := c.target.Freezer()
	if err != nil {
		return err
	}
	return g.Thaw()
}

// connectGrace is how long a program has to connect to the socket after its server
// answers. A program that does not connect is expected to read the file.
const connectGrace = time.Second
