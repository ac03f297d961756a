package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"holdfast/internal/control/config"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/linux/vethnet"
)

// The bridge of sessions on Docker and its subnet, unless the configuration names others.
// They differ from those of the containerd adapter, so that an agent for each engine may
// run on one host.
const (
	dockerBridge = "holdfast1"
	dockerSubnet = "10.172.0.0/16"
)

// tendEvery is how often the bridge's NAT is repaired.
const tendEvery = 10 * time.Second

// Docker is a Docker engine beside a bridge of Holdfast's. Its Run maintains the bridge.
type Docker struct {
	*docker.Engine
	net *vethnet.Net
	cfg vethnet.Config

	mu       sync.Mutex
	err      error
	failures int
}

// openDocker connects to Docker. The bridge is maintained if the configuration uses it, or
// if sessions of an earlier agent may.
func openDocker(ctx context.Context, c config.Config) (Engine, error) {
	e, err := opened(docker.Open(ctx, docker.Config{Host: c.Engine.Host}))
	if err != nil {
		return nil, err
	}
	subnet, err := netip.ParsePrefix(cmp.Or(c.Engine.Subnet, dockerSubnet))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("engine.subnet: %w", err), e.Close())
	}
	d := &Docker{Engine: e.(*docker.Engine)}
	bridge := cmp.Or(c.Engine.Bridge, dockerBridge)
	d.cfg = vethnet.Config{
		Bridge: bridge, Subnet: subnet, Dir: filepath.Join(c.RunDir, "bridge"),
		Table: "holdfast-net-" + bridge, NAT: c.Engine.Masquerade,
	}
	if d.net, err = vethnet.New(d.cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("the network of sessions: %w", err), e.Close())
	}
	if !c.Engine.OwnNetwork {
		if _, err := net.InterfaceByName(bridge); err != nil {
			return e, nil // no agent has made the bridge
		}
	}
	return d, nil
}

// OwnNet returns the bridge of sessions.
func (d *Docker) OwnNet() *vethnet.Net { return d.net }

// Net is the configuration of the bridge, which the guardian removes when no agent
// maintains it any more.
func (d *Docker) Net() vethnet.Config { return d.cfg }

// Upkeep returns the error of the last maintenance of the bridge's NAT, or nil, and the
// number of failures.
func (d *Docker) Upkeep() (failures int, last error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failures, d.err
}

// Run maintains the bridge until ctx is done. It then removes the bridge unless a session
// is connected.
func (d *Docker) Run(ctx context.Context) error {
	release, err := d.net.Keep()
	if err != nil {
		return err
	}
	defer release()
	for {
		d.tend()
		if !engine.Sleep(ctx, tendEvery) {
			break
		}
	}
	return d.leave()
}

func (d *Docker) tend() {
	err := d.net.Tend()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err = err; err != nil {
		d.failures++
	}
}

// leave removes the bridge. If a session is connected, or a network is still ending, the
// guardian or the next agent does.
func (d *Docker) leave() error {
	err := d.net.Remove(nil)
	if errors.Is(err, vethnet.ErrInUse) {
		return nil
	}
	return err
}
