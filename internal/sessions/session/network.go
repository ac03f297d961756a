package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/uts"
	"holdfast/internal/sessions/kill"
)

// Networks are ready networks. Each is held by a container that does nothing else. Any
// goroutine may call the methods.
type Networks interface {
	// Take gives a network to a session permanently, with hostname as the container's
	// host name. The target is the container that holds the network; the pool closes
	// it. Take returns false if no network is ready. It does not wait.
	Take(hostname string) (*kill.Target, bool)
	// Adopt is Take for the network of an adopted session, by its holder's id. It
	// returns holdfast.ErrNotFound if the holder does not run.
	Adopt(ctx context.Context, id string) (*kill.Target, error)
	// Drop removes a network when the session's container is dead, or will not be
	// created. It does not wait.
	Drop(id string)
}

// joins is the prefix of the network mode of a container that joins another
// container's network.
const joins = "container:"

// takeNetwork returns the spec of a container that joins a network of the agent's, or a
// ready one, if the template allows it and there is one. Otherwise the engine creates a
// network, which takes longer. A network is for one container.
func (b *attempt) takeNetwork(spec engine.Spec) engine.Spec {
	if !b.e.template.Pooled {
		return spec
	}
	if b.m.deps.OwnNetworks != nil {
		if n, ok := b.m.deps.OwnNetworks.Take(spec.Hostname); ok {
			b.m.mu.Lock()
			b.e.holder, b.e.network = n.Holder, n.Addr
			b.m.mu.Unlock()
			return n.Join(spec, spec.Hostname)
		}
	}
	if b.m.deps.Networks == nil || spec.Labels[LabelStep] != "" {
		return spec
	}
	holder, ok := b.m.deps.Networks.Take(spec.Hostname)
	if !ok {
		return spec
	}
	b.m.mu.Lock()
	b.e.holder = holder
	b.m.mu.Unlock()
	spec.Env = append([]string{"HOSTNAME=" + spec.Hostname}, spec.Env...)
	spec.Network, spec.Hostname = joins+holder.ID, ""
	return spec
}

// joined sees the started container in its network, if the network is one of the agent's,
// and frees the holder. It sets the host name of a container that has joined a network.
func (b *attempt) joined() error {
	if b.e.holder != nil {
		b.setHostname()
	}
	if !b.e.network.IsValid() {
		return nil
	}
	if err := b.m.deps.OwnNetworks.Started(b.e.network, b.target.Pid()); err != nil {
		return err
	}
	b.m.mu.Lock()
	b.e.holder = nil
	b.m.mu.Unlock()
	return nil
}

// setHostname sets the host name of a running container that the engine could not set,
// because the container joined a network or existed before its session.
func (b *attempt) setHostname() {
	err := uts.SetHostname(b.target.Pid(), string(b.e.key))
	if err != nil && !b.target.Init().Exited() {
		b.m.log.Warn("a session's container has another host name than its key", "session", b.e.key, "err", err)
	}
}

// dropNetwork drops the network of an entry without processes.
func (m *Manager) dropNetwork(e *entry) {
	m.mu.Lock()
	holder, own := e.holder, e.network
	e.holder, e.network = nil, netip.Addr{}
	m.mu.Unlock()
	switch {
	case own.IsValid():
		m.deps.OwnNetworks.Drop(own)
	case holder != nil:
		m.deps.Networks.Drop(holder.ID)
	}
}

// ownNetwork returns the address of a container in a network of the agent's; the zero
// value if it is in another one.
func (m *Manager) ownNetwork(c engine.Container) netip.Addr {
	addr, err := netip.ParseAddr(c.Labels[engine.LabelAddress])
	if err != nil || m.deps.OwnNetworks == nil {
		return netip.Addr{}
	}
	return addr
}

// adoptNetwork takes over the holder of a running container's network. The holder is
// nil if the container has a network of its own. ok is false if the network is lost;
// then the container cannot be used.
func (m *Manager) adoptNetwork(ctx context.Context, c engine.Container) (holder *kill.Target, ok bool, err error) {
	id, joined := strings.CutPrefix(c.Network, joins)
	if !joined || m.deps.Networks == nil || c.Labels[engine.LabelAddress] != "" {
		return nil, true, nil
	}
	holder, err = m.deps.Networks.Adopt(ctx, id)
	switch {
	case err == nil:
		return holder, true, nil
	case errors.Is(err, holdfast.ErrNotFound) || errors.Is(err, kill.ErrStranger) || errors.Is(err, kill.ErrProtected):
		m.log.Warn("a session's container has lost its network", "container", c.Name, "err", err)
		return nil, false, nil
	case ctx.Err() != nil || errors.Is(err, holdfast.ErrEngine):
		return nil, false, err
	}
	return nil, false, fmt.Errorf("%w: %w", errUnclear, err)
}

// networkLost reports whether the holder of the session's network has exited.
func (e *entry) networkLost() bool { return e.holder != nil && e.holder.Init().Exited() }
