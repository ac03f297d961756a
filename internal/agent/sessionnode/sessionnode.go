// Package sessionnode acts on single sessions of any node: directly on those of its own
// node, and through the API of the owner's node on others.
package sessionnode

import (
	"context"
	"io"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/replace"
	"holdfast/internal/sessions/session"
)

// Node acts on the sessions of all nodes. Any goroutine may call its methods. They return
// when ctx is done.
type Node struct {
	ID       holdfast.NodeID // this node
	Sessions *session.Manager
	Engine   engine.Engine
	Replacer *replace.Sessions
	// Client returns a client of another node's API, which the caller closes. nil: this
	// node reaches no others.
	Client func(holdfast.NodeID) (*client.Client, error)
}

// at returns a client of the node that owns the session, nil for this node.
func (n *Node) at(o holdfast.Owner) (*client.Client, error) {
	switch {
	case o.Node == n.ID:
		return nil, nil
	case n.Client == nil:
		return nil, &holdfast.ElsewhereError{Owner: o}
	}
	return n.Client(o.Node)
}

// EndAt ends a session of another node, which tells the session's successor first.
func (n *Node) EndAt(ctx context.Context, o holdfast.Owner) (holdfast.KillReport, error) {
	if n.Client == nil {
		return holdfast.KillReport{}, &holdfast.ElsewhereError{Owner: o}
	}
	c, err := n.Client(o.Node)
	if err != nil {
		return holdfast.KillReport{}, err
	}
	defer c.Close()
	r, err := c.MoveSession(ctx, o.Key, api.MoveRequest{})
	return r.KillReport, err
}

// Start implements group.Sessions.
func (n *Node) Start(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Owner, error) {
	return n.Replacer.Start(ctx, key, template)
}

// Stop implements group.Sessions.
func (n *Node) Stop(ctx context.Context, o holdfast.Owner) (holdfast.KillReport, error) {
	c, err := n.at(o)
	if err != nil {
		return holdfast.KillReport{}, err
	}
	if c == nil {
		return n.Sessions.Replace(ctx, o.Key)
	}
	defer c.Close()
	return c.StopSession(ctx, o.Key)
}

// Connections implements group.Sessions.
func (n *Node) Connections(ctx context.Context, o holdfast.Owner) (int, error) {
	c, err := n.at(o)
	if err != nil {
		return 0, err
	}
	if c == nil {
		i, err := n.Sessions.Get(o.Key)
		return i.Connections, err
	}
	defer c.Close()
	s, err := c.Session(ctx, o.Key)
	return s.Connections, err
}

// Exec implements group.Sessions.
func (n *Node) Exec(ctx context.Context, o holdfast.Owner, command []string, out io.Writer) (int, error) {
	c, err := n.at(o)
	if err != nil {
		return 0, err
	}
	if c == nil {
		return n.Engine.Exec(ctx, o.ContainerID, engine.Exec{Command: command, Stdout: out, Stderr: out})
	}
	defer c.Close()
	return c.Exec(ctx, o.Key, api.Exec{Command: command, Stdout: out, Stderr: out})
}
