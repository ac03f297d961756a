package docker

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// maxJoins bounds the chain of containers that share a network namespace: each may
// refer to the next.
const maxJoins = 4

// Inspect returns one container, by id or name. If it shares the network of another
// one, Inspect makes a call for that one too, unless the container's label has its own
// address.
func (e *Engine) Inspect(ctx context.Context, id string) (engine.Container, error) {
	raw, err := e.inspect(ctx, id)
	if err != nil {
		return engine.Container{}, err
	}
	c := containerOf(raw)
	if own := c.Labels[engine.LabelAddress]; own != "" {
		if c.Running() {
			c.Addresses = []string{own}
		}
		return c, nil
	}
	owner, network := raw, c.Network
	for range maxJoins {
		joined, ok := strings.CutPrefix(network, "container:")
		if !ok {
			break
		}
		owner, err = e.inspect(ctx, joined)
		if errors.Is(err, holdfast.ErrNotFound) {
			return c, nil // its network is gone with that container
		}
		if err != nil {
			return engine.Container{}, err
		}
		network = networkOf(owner)
	}
	c.Addresses, c.Published = addressesOf(owner), publishedOf(owner)
	return c, nil
}

func (e *Engine) inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	res, err := e.api().ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	return res.Container, e.fail(ctx, err, "inspect container %s", id)
}

// containerOf translates everything but the addresses.
func containerOf(raw container.InspectResponse) engine.Container {
	c := engine.Container{
		ID:      raw.ID,
		Name:    strings.TrimPrefix(raw.Name, "/"),
		Created: parseTime(raw.Created),
		Network: networkOf(raw),
	}
	if raw.Config != nil {
		c.Image, c.Labels, c.Env = raw.Config.Image, raw.Config.Labels, raw.Config.Env
		// "NONE" switches off the image's health check (dockerfile(5), HEALTHCHECK).
		h := raw.Config.Healthcheck
		c.Healthcheck = h != nil && len(h.Test) > 0 && h.Test[0] != "NONE"
	}
	if s := raw.State; s != nil {
		c.State, c.Pid = string(s.Status), s.Pid
		c.StartedAt, c.FinishedAt = parseTime(s.StartedAt), parseTime(s.FinishedAt)
		c.ExitCode, c.OOMKilled, c.Error = s.ExitCode, s.OOMKilled, s.Error
	}
	if h := raw.HostConfig; h != nil {
		c.PIDMode = string(h.PidMode)
		c.Restart = engine.RestartPolicy(h.RestartPolicy.Name)
		c.CgroupPath = cgroupPath(h.CgroupParent, raw.ID)
	}
	c.Restart = cmp.Or(c.Restart, engine.RestartNo)
	return c
}

func networkOf(raw container.InspectResponse) string {
	if raw.HostConfig == nil {
		return ""
	}
	return string(raw.HostConfig.NetworkMode)
}

// cgroupPath is the cgroup of a container with its own parent under the cgroupfs
// driver. It is unknown for the engine's default parent and for a systemd slice,
// which the engine does not report.
func cgroupPath(parent, id string) string {
	if parent == "" || strings.HasSuffix(parent, ".slice") {
		return ""
	}
	return path.Join("/", parent, id)
}

// addressesOf returns a container's addresses in all its networks: IPv4 first,
// and by network name.
func addressesOf(raw container.InspectResponse) []string {
	if raw.NetworkSettings == nil {
		return nil
	}
	var v4, v6 []string
	networks := raw.NetworkSettings.Networks
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		n := networks[name]
		if n == nil {
			continue
		}
		if n.IPAddress.IsValid() {
			v4 = append(v4, n.IPAddress.String())
		}
		if n.GlobalIPv6Address.IsValid() {
			v6 = append(v6, n.GlobalIPv6Address.String())
		}
	}
	return append(v4, v6...)
}

// publishedOf returns a running container's TCP ports that are published, by their
// number inside.
func publishedOf(raw container.InspectResponse) []engine.Published {
	if raw.NetworkSettings == nil {
		return nil
	}
	var ps []engine.Published
	for inside, bindings := range raw.NetworkSettings.Ports {
		for _, b := range bindings {
			port, err := strconv.ParseUint(b.HostPort, 10, 16)
			if err != nil || inside.Proto() != network.TCP {
				continue
			}
			ps = append(ps, engine.Published{Host: netip.AddrPortFrom(b.HostIP, uint16(port)), Inside: inside.Num()})
		}
	}
	sort.Slice(ps, func(i, j int) bool {
		a, b := &ps[i], &ps[j]
		return cmp.Or(cmp.Compare(a.Inside, b.Inside), a.Host.Compare(b.Host)) < 0
	})
	return ps
}

// parseTime parses a time of the engine. An event that has not happened has the year
// 1, which is Go's zero time.
func parseTime(s string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, s) // the zero time for a text that is not a time
	return t
}
