package pool

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
)

// Networks are networks that the agent makes itself. A container joins one by way of a
// holder, at its start: the holder is then in the network's namespace. Any goroutine may
// call the methods.
type Networks interface {
	// Take gives a network permanently, and reserves its holder until Started or Drop. The
	// files in the mounts have the host name. It waits for a network that is expected soon, for
	// a few seconds at most. It returns false if there is none.
	Take(ctx context.Context, hostname string) (Joined, bool)
	// Settled reports whether a Take that returned false now would return false for longer
	// than the pool needs to fill.
	Settled() bool
	// Started checks that a process of the started container is in the network, and frees
	// the holder. After an error the container must not be used.
	Started(addr netip.Addr, pid int) error
	// Adopt is Take for the network of a running container that an earlier agent started.
	Adopt(addr netip.Addr)
	// Drop ends a network when its container is dead, or will not be created, and nothing
	// starts it any more. It does not wait. An unknown address is no error.
	Drop(addr netip.Addr)
}

// Joined is a network that a container joins at its start.
type Joined struct {
	Addr   netip.Addr
	Holder *kill.Target   // the container to join; it belongs to the pool
	Mounts []engine.Mount // of files in /etc that depend on the network
}

// Join returns the spec of a container that joins the network. hostname is its host name.
func (j Joined) Join(spec engine.Spec, hostname string) engine.Spec {
	// The engine gives the container the holder's host name. Programs that read the
	// variable have the right one from the start.
	spec.Env = append([]string{"HOSTNAME=" + hostname}, spec.Env...)
	spec.Network, spec.Hostname = "container:"+j.Holder.ID, ""
	spec.Labels = maps.Clone(spec.Labels)
	spec.Labels[engine.LabelAddress] = j.Addr.String()
	spec.Mounts = slices.Clone(spec.Mounts)
	for _, mount := range j.Mounts {
		if !slices.ContainsFunc(spec.Mounts, func(m engine.Mount) bool { return m.Target == mount.Target }) {
			spec.Mounts = append(spec.Mounts, mount)
		}
	}
	return spec
}
