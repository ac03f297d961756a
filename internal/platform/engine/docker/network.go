package docker

import (
	"context"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// CreateNetwork makes a bridge network and returns its id. Names are not unique in an
// engine, so all other calls take the id.
func (e *Engine) CreateNetwork(ctx context.Context, name string, labels map[string]string) (string, error) {
	res, err := e.api().NetworkCreate(ctx, name, client.NetworkCreateOptions{Driver: "bridge", Labels: labels})
	if err != nil {
		err = e.fail(ctx, err, "create network %s", name)
		// libnetwork, ipam: the address pools are exhausted.
		if text := err.Error(); strings.Contains(text, "address pool") || strings.Contains(text, "subnetted") {
			err = holdfast.WithHint(err, "the engine has no addresses left: remove unused networks (docker network prune), or add addresses (default-address-pools in its daemon.json)")
		}
		return "", err
	}
	return res.ID, nil
}

// endpointLimit bounds the retries of RemoveNetwork while the engine still cleans up
// endpoints. It does not bound a slow answer, which the caller does: on a busy host
// one network can take more than half a minute.
const endpointLimit = 30 * time.Second

// RemoveNetwork deletes a network. A network that is gone is no error; a network with
// an attached container is one. On a busy host an engine may keep the endpoint of a
// container that it has removed; RemoveNetwork removes such endpoints.
func (e *Engine) RemoveNetwork(ctx context.Context, id string) error {
	begin := time.Now()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		_, err := e.api().NetworkRemove(ctx, id, client.NetworkRemoveOptions{})
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if !strings.Contains(err.Error(), "active endpoints") || time.Since(begin) > endpointLimit || !e.freeEndpoints(ctx, id) || tasks.Sleep(ctx, wait) != nil {
			return e.fail(ctx, err, "remove network %s", id)
		}
	}
}

// freeEndpoints disconnects containers that are gone from a network, and reports
// whether no other one is attached.
func (e *Engine) freeEndpoints(ctx context.Context, id string) bool {
	res, err := e.api().NetworkInspect(ctx, id, client.NetworkInspectOptions{})
	if err != nil {
		return errdefs.IsNotFound(err)
	}
	for attached, endpoint := range res.Network.Containers {
		_, err := e.api().ContainerInspect(ctx, attached, client.ContainerInspectOptions{})
		if !errdefs.IsNotFound(err) {
			return false
		}
		// The call takes the endpoint's name, because the container's is gone. The
		// endpoint may have gone meanwhile.
		_, _ = e.api().NetworkDisconnect(ctx, id, client.NetworkDisconnectOptions{Container: endpoint.Name, Force: true})
	}
	return true
}

// endpoints gives a container its aliases on its network; nil if it has none.
func endpoints(s engine.Spec) *network.NetworkingConfig {
	if len(s.Aliases) == 0 {
		return nil
	}
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
		s.Network: {Aliases: s.Aliases},
	}}
}
