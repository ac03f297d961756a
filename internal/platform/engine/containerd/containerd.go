// Package containerd is the engine contract over containerd's API, versions 1.6
// and later. The types of the API never leave the package.
//
// containerd keeps images, snapshots, containers and tasks in namespaces; all
// that is done here stays in one of them. What an engine does beside that is
// done here: addresses and devices (internal/platform/linux/vethnet), logs, which this
// package reads from the containers' pipes, names, restarts, volumes. What that
// needs is kept in a directory for each container below Config.Dir, and in the
// container's labels and extensions, so that another process finds it.
package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/vethnet"
)

// The values of a Config that is left empty.
const (
	DefaultHost        = "unix:///run/containerd/containerd.sock"
	DefaultNamespace   = "holdfast"
	DefaultSnapshotter = "overlayfs"
	DefaultBridge      = "holdfast0"
	DefaultSubnet      = "10.171.0.0/16"
)

// tablePrefix begins the name of the nftables table of a bridge, and what marks
// rules in iptables.
const tablePrefix = "holdfast-net-"

// Config says where the engine is, and where its own things are.
type Config struct {
	// Host is unix:///path. "" is DefaultHost.
	Host string
	// Namespace is containerd's. "" is DefaultNamespace.
	Namespace string
	// Snapshotter makes the containers' file systems. "" is DefaultSnapshotter.
	Snapshotter string
	// Dir keeps logs, volumes and addresses. It is made when it is first needed.
	Dir string
	// CgroupParent is where, under each cgroup mount, containers' cgroups are. ""
	// is / and the namespace.
	CgroupParent string
	// Bridge is the device that containers are connected to, Subnet what their
	// addresses are from. "" is DefaultBridge and DefaultSubnet.
	Bridge, Subnet string
	// Runtimes are what may run containers beside the default runc: absolute paths
	// of programs that take runc's arguments, by the names that a Spec has for
	// them. They need not be there yet.
	Runtimes map[string]string
	// Masquerade lets containers on the bridge reach what is beyond the host, with
	// the host's address. Without it the firewall is left alone.
	Masquerade bool
}

// Engine implements engine.Engine. Its methods may be called from any goroutine.
type Engine struct {
	conn   *grpc.ClientConn
	api    *client.Client
	cfg    Config
	socket string
	root   string // of the daemon's data, "" where it does not tell
	net    *vethnet.Net
	netCfg vethnet.Config
	upkeep upkeep
	images imageCache
	pumps  *pumps
	marks  marks
	silent *log.Entry
	locks  keyed // one start of a container at a time
}

var _ engine.Engine = (*Engine)(nil)

// Net is the network of its own that containers are on, for who takes it away when
// nobody looks after it any more (vethnet.Net.RemoveAbandoned). Run looks after it.
func (e *Engine) Net() vethnet.Config { return e.netCfg }

// Open connects to the engine. One that does not answer is an error that wraps
// holdfast.ErrEngine.
func Open(ctx context.Context, c Config) (*Engine, error) {
	socket, err := c.complete()
	if err != nil {
		return nil, err
	}
	subnet, err := netip.ParsePrefix(c.Subnet)
	if err != nil {
		return nil, fmt.Errorf("the subnet of containers: %w", err)
	}
	netCfg := vethnet.Config{Bridge: c.Bridge, Subnet: subnet, Dir: filepath.Join(c.Dir, "addresses"), Table: tablePrefix + c.Bridge, Out: c.Masquerade}
	net, err := vethnet.New(netCfg)
	if err != nil {
		return nil, fmt.Errorf("the network of containers: %w", err)
	}
	conn, err := dial(socket)
	if err != nil {
		return nil, fmt.Errorf("use containerd at %s: %w", c.Host, err)
	}
	api, err := client.NewWithConn(conn, client.WithDefaultNamespace(c.Namespace), client.WithDefaultRuntime(shimName),
		client.WithServices(client.WithDiffService(watchedDiff{client.NewDiffServiceFromClient(diffClient(conn))})))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("use containerd at %s: %w", c.Host, err), conn.Close())
	}
	e := &Engine{conn: conn, api: api, cfg: c, socket: socket, net: net, netCfg: netCfg, pumps: newPumps(), silent: silence()}
	if e.root, err = e.dataRoot(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return e, nil
}

// complete fills in what is empty, and returns the socket's path.
func (c *Config) complete() (socket string, err error) {
	c.Host = cmp.Or(c.Host, DefaultHost)
	c.Namespace = cmp.Or(c.Namespace, DefaultNamespace)
	c.Snapshotter = cmp.Or(c.Snapshotter, DefaultSnapshotter)
	c.CgroupParent = cmp.Or(c.CgroupParent, "/"+c.Namespace)
	c.Bridge, c.Subnet = cmp.Or(c.Bridge, DefaultBridge), cmp.Or(c.Subnet, DefaultSubnet)
	socket, ok := strings.CutPrefix(c.Host, "unix://")
	switch {
	case !ok || !path.IsAbs(socket):
		return "", holdfast.WithHint(fmt.Errorf("containerd's address %q is not supported", c.Host), "use unix:///path/to/containerd.sock")
	case !filepath.IsAbs(c.Dir):
		return "", fmt.Errorf("the directory %q for containers' logs is no absolute path", c.Dir)
	case badRuntime(c.Runtimes) != nil:
		return "", badRuntime(c.Runtimes)
	case namespaceError(c.Namespace) != nil:
		return "", fmt.Errorf("containerd's namespace %q: %w", c.Namespace, namespaceError(c.Namespace))
	}
	return socket, nil
}

// Close ends the connections. Logs of containers that run on are taken up by the
// next Engine.
func (e *Engine) Close() error {
	e.pumps.close()
	return e.conn.Close()
}

// in is ctx for calls about the engine's namespace.
func (e *Engine) in(ctx context.Context) context.Context {
	return namespaces.WithNamespace(log.WithLogger(ctx, e.silent), e.cfg.Namespace)
}

// silence keeps the client from writing a log of its own to standard error: what
// went wrong it returns, too.
func silence() *log.Entry {
	to := logrus.New()
	to.SetOutput(io.Discard)
	return logrus.NewEntry(to)
}

// Info says what the engine is, in one call.
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	v, err := e.api.Version(e.in(ctx))
	if err != nil {
		return engine.Info{}, e.fail(ctx, err, "ask the engine what it is")
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return engine.Info{}, fmt.Errorf("ask for the kernel's release: %w", err)
	}
	return engine.Info{
		Name: "containerd", Version: strings.TrimPrefix(v.Version, "v"), APIVersion: "1",
		StorageDriver: e.cfg.Snapshotter, ImageStore: engine.ClientStore,
		Kernel: unix.ByteSliceToString(name.Release[:]), CgroupVersion: cgroupVersion(),
		DataRoot: e.root, Socket: e.socket,
	}, nil
}

// cgroupVersion is what runc goes by: a tree of version 2 at the usual place is
// version 2, everything else 1.
func cgroupVersion() string {
	var fs unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return "2"
	}
	return "1"
}

// dataRoot is the daemon's directory: each of its plugins has one in there.
func (e *Engine) dataRoot(ctx context.Context) (string, error) {
	res, err := e.api.IntrospectionService().Plugins(e.in(ctx), "type==io.containerd.snapshotter.v1,id=="+e.cfg.Snapshotter)
	if err != nil {
		return "", e.fail(ctx, err, "connect to containerd")
	}
	if len(res.Plugins) == 0 || res.Plugins[0].InitErr != nil {
		return "", holdfast.WithHint(fmt.Errorf("containerd at %s has no snapshotter %s", e.cfg.Host, e.cfg.Snapshotter),
			"`ctr plugins ls` shows those that it has: name one in engine.snapshotter")
	}
	root := res.Plugins[0].Exports["root"]
	if root == "" {
		return "", nil
	}
	return filepath.Dir(root), nil
}

// keyed is a lock for each of many things.
type keyed struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when it is let go
}

// lock returns once nobody else has key, with what lets it go.
func (k *keyed) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		busy, taken := k.held[key]
		if !taken {
			if k.held == nil {
				k.held = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			k.held[key] = mine
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(mine)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
