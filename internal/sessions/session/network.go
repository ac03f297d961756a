package session

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/uts"
)

// takeNetwork returns the spec of a container that joins a network of the agent's, if the
// template allows it and there is one. Otherwise the engine creates a network, which takes
// longer. A network is for one container.
func (b *attempt) takeNetwork(ctx context.Context, spec engine.Spec) engine.Spec {
	if !b.e.template.Pooled || b.m.deps.Networks == nil {
		return spec
	}
	n, ok := b.m.deps.Networks.Take(ctx, spec.Hostname)
	if !ok {
		return spec
	}
	b.m.mu.Lock()
	b.e.holder, b.e.network = n.Holder, n.Addr
	b.m.mu.Unlock()
	return n.Join(spec, spec.Hostname)
}

// joined sets the host name of a started container that has joined a network of the
// agent's, sees the container in the network, and frees the holder.
func (b *attempt) joined() error {
	if !b.e.network.IsValid() {
		return nil
	}
	b.setHostname()
	err := b.m.deps.Networks.Started(b.e.network, b.target.Pid())
	if errors.Is(err, fs.ErrNotExist) {
		return errDied // a process that ends leaves its namespaces before it is seen to have ended
	}
	if err != nil {
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
	addr := e.network
	e.holder, e.network = nil, netip.Addr{}
	m.mu.Unlock()
	if addr.IsValid() {
		m.deps.Networks.Drop(addr)
	}
}

// networkOf returns the address of a container in a network of the agent's; the zero value
// if it is in another one.
func (m *Manager) networkOf(c engine.Container) netip.Addr {
	addr, err := netip.ParseAddr(c.Labels[engine.LabelAddress])
	if err != nil || m.deps.Networks == nil {
		return netip.Addr{}
	}
	return addr
}

// holderLost reports whether the holder of a boot has exited.
func (e *entry) holderLost() bool { return e.holder != nil && e.holder.Init().Exited() }
