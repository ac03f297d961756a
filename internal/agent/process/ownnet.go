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

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/platform/tasks"
)

// dockerBridge is the bridge of sessions on Docker, unless the configuration names another.
// It is not that of the containerd adapter, so that an agent for each engine may run on one
// host.
const dockerBridge = "holdfast1"

// dockerSubnets are the subnets of the bridge, unless the configuration names one: the first
// that no route of this host overlaps.
func dockerSubnets() []netip.Prefix {
	var list []netip.Prefix
	for _, s := range []string{"10.172.0.0/16", "10.246.0.0/16", "172.30.0.0/16", "192.168.172.0/22"} {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

// bridgeLocks is the directory of the locks of bridges. All agents of a host use the same one:
// one that ends removes no bridge to which another one connects a session.
const bridgeLocks = "/run/holdfast/bridges"

// tendEvery is how often the bridge's NAT is repaired.
const tendEvery = 10 * time.Second

// Docker is a Docker engine beside a bridge of Holdfast's. Its Run maintains the bridge.
type Docker struct {
	*docker.Engine
	net     *vethnet.Net
	cfg     vethnet.Config
	lacking error // why no session can be on the bridge; nil: nothing is known against it

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
	bridge := cmp.Or(c.Engine.Bridge, dockerBridge)
	if !c.Joins() {
		if _, err := net.InterfaceByName(bridge); err != nil {
			return e, nil // no agent has made the bridge
		}
	}
	d, err := besideDocker(e.(*docker.Engine), bridge, c)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return d, nil
}

func besideDocker(e *docker.Engine, bridge string, c config.Config) (*Docker, error) {
	d := &Docker{Engine: e}
	subnet, err := netip.ParsePrefix(c.Engine.Subnet)
	switch {
	case c.Engine.Subnet == "":
		subnet, err = vethnet.FreeSubnet(bridge, dockerSubnets())
		if errors.Is(err, vethnet.ErrNoSubnet) {
			subnet, d.lacking, err = dockerSubnets()[0], holdfast.WithHint(err, "name a free one with engine.subnet"), nil
		}
	case err != nil:
		err = fmt.Errorf("engine.subnet: %w", err)
	}
	if err != nil {
		return nil, err
	}
	d.cfg = vethnet.Config{
		Bridge: bridge, Subnet: subnet, Dir: filepath.Join(bridgeLocks, bridge),
		Table: "holdfast-net-" + bridge, NAT: c.Engine.Masquerade,
	}
	if d.net, err = vethnet.New(d.cfg); err != nil {
		return nil, fmt.Errorf("the network of sessions: %w", err)
	}
	return d, nil
}

// errRemapped is the reason of an engine whose containers are in a user namespace: their
// processes may not enter a network namespace of the host's (setns(2)).
var errRemapped = errors.New("the engine remaps user ids (userns-remap)")

// Lacking returns why sessions cannot be on a bridge of Holdfast's beside an engine of
// OpenSuitable, so that they get networks of the engine's; nil if nothing is known against
// it.
func Lacking(e Engine) error {
	if d, ok := e.(*Docker); ok {
		return d.lacking
	}
	return nil
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
	for i := 0; ; i++ {
		d.tend(i%vethnet.DevicesEvery == 0)
		if tasks.Sleep(ctx, tendEvery) != nil {
			break
		}
	}
	return d.leave()
}

// tend repairs the NAT. Without a session on the bridge an error is no trouble of the node:
// then new ones get networks of the engine's.
func (d *Docker) tend(devices bool) {
	err := d.net.Tend(devices)
	reported := err
	if err != nil {
		if used, unknown := d.net.Addresses(); len(used) == 0 && unknown == nil {
			reported = nil
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err = reported; err != nil {
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
