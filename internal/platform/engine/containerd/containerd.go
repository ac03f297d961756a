// Package containerd implements engine.Engine with containerd's API, versions 1.6 and
// later. It does not export the API's types.
//
// containerd keeps images, snapshots, containers and tasks in namespaces; this
// package uses one of them. It adds what containerd lacks of an engine: addresses and
// devices (internal/platform/linux/vethnet), logs, which it reads from the
// containers' pipes, names, restarts and volumes. Their data are in a directory for
// each container below Config.Dir, and in the container's labels and extensions, so
// that another process can use them.
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

	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/vethnet"
)

// The defaults of Config.
const (
	DefaultHost        = "unix:///run/containerd/containerd.sock"
	DefaultNamespace   = "holdfast"
	DefaultSnapshotter = "overlayfs"
	DefaultBridge      = "holdfast0"
	DefaultSubnet      = "10.171.0.0/16"
)

// tablePrefix is the prefix of the name of a bridge's nftables table, and of the
// comment of its iptables rules.
const tablePrefix = "holdfast-net-"

// Config has the engine's address and this package's settings.
type Config struct {
	// Host is unix:///path. "" is DefaultHost.
	Host string
	// Namespace is containerd's. "" is DefaultNamespace.
	Namespace string
	// Snapshotter makes the containers' file systems. "" is DefaultSnapshotter.
	Snapshotter string
	// Dir is the directory of logs, volumes and addresses. It is made when it is
	// first needed.
	Dir string
	// CgroupParent is the parent of containers' cgroups under each cgroup mount. ""
	// is / and the namespace.
	CgroupParent string
	// Bridge is the bridge device of containers, and Subnet the range of their
	// addresses. "" is DefaultBridge and DefaultSubnet.
	Bridge, Subnet string
	// Runtimes are the container runtimes besides runc: absolute paths of programs
	// that take runc's arguments, by the name in Spec.Runtime. The programs need not
	// exist yet.
	Runtimes map[string]string
	// Certs is the directory of the hosts' settings for registries. "" is
	// /etc/containerd/certs.d.
	Certs string
	// Masquerade lets containers on the bridge reach other networks, with NAT to the
	// host's address. Without it no firewall rule is changed.
	Masquerade bool
}

// Engine implements engine.Engine. Its methods may be called from any goroutine.
type Engine struct {
	conn   *grpc.ClientConn
	api    *client.Client
	cfg    Config
	socket string
	root   string // the daemon's data directory, "" if unknown
	net    *vethnet.Net
	netCfg vethnet.Config
	upkeep upkeep
	// configs and sizes are those of images.
	configs cache[config]
	sizes   cache[int64]
	pumps   *pumps
	marks   marks
	silent  *log.Entry
	locks   keyed // one start of a container at a time
}

var _ engine.Engine = (*Engine)(nil)

// Net is the configuration of the containers' network. Run maintains the network; the
// guardian removes it when no agent maintains it any more
// (vethnet.Net.RemoveAbandoned).
func (e *Engine) Net() vethnet.Config { return e.netCfg }

// Open connects to the engine. If the engine does not answer, the error wraps
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
	netCfg := vethnet.Config{Bridge: c.Bridge, Subnet: subnet, Dir: filepath.Join(c.Dir, "addresses"), Table: tablePrefix + c.Bridge, NAT: c.Masquerade}
	net, err := vethnet.New(netCfg)
	if err != nil {
		return nil, fmt.Errorf("the network of containers: %w", err)
	}
	conn, err := dial(socket)
	if err != nil {
		return nil, fmt.Errorf("use containerd at %s: %w", c.Host, err)
	}
	api, err := client.NewWithConn(conn, client.WithDefaultNamespace(c.Namespace), client.WithDefaultRuntime(shimName),
		client.WithServices(client.WithDiffService(watchedDiff{client.NewDiffServiceFromClient(diffapi.NewDiffClient(conn))})))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("use containerd at %s: %w", c.Host, err), conn.Close())
	}
	e := &Engine{conn: conn, api: api, cfg: c, socket: socket, net: net, netCfg: netCfg, pumps: newPumps(), silent: silence()}
	if e.root, err = e.dataRoot(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return e, nil
}

// complete fills in the defaults, and returns the socket's path.
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
		return "", fmt.Errorf("the directory %q for containers' logs is not an absolute path", c.Dir)
	}
	if err := identifiers.Validate(c.Namespace); err != nil {
		return "", fmt.Errorf("containerd's namespace %q: %w", c.Namespace, err)
	}
	return socket, badRuntime(c.Runtimes)
}

// Close ends the connections. The next Engine continues the logs of containers that
// go on.
func (e *Engine) Close() error {
	e.pumps.close()
	return e.conn.Close()
}

// in is ctx for calls in the engine's namespace.
func (e *Engine) in(ctx context.Context) context.Context {
	return namespaces.WithNamespace(log.WithLogger(ctx, e.silent), e.cfg.Namespace)
}

// silence keeps the client from logging to standard error; it also returns its
// errors.
func silence() *log.Entry {
	to := logrus.New()
	to.SetOutput(io.Discard)
	return logrus.NewEntry(to)
}

// Ping asks for the engine's version.
func (e *Engine) Ping(ctx context.Context) error {
	_, err := e.api.Version(e.in(ctx))
	return e.fail(ctx, err, "ask whether the engine answers")
}

// Info describes the engine, with one call.
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	v, err := e.api.Version(e.in(ctx))
	if err != nil {
		return engine.Info{}, e.fail(ctx, err, "read the engine's version")
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return engine.Info{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	return engine.Info{
		Name: "containerd", Version: strings.TrimPrefix(v.Version, "v"), APIVersion: "1",
		StorageDriver: e.cfg.Snapshotter, ImageStore: engine.ClientStore,
		Kernel: unix.ByteSliceToString(name.Release[:]), CgroupVersion: cgroupVersion(),
		DataRoot: e.root, Socket: e.socket,
	}, nil
}

// cgroupVersion uses runc's rule: version 2 if a cgroup2 file system is mounted at
// the usual place, otherwise 1.
func cgroupVersion() string {
	var fs unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return "2"
	}
	return "1"
}

// dataRoot is the daemon's data directory, which is the parent of its plugins'
// directories.
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

// keyed is a set of locks, one for each key.
type keyed struct {
	held sync.Map // of a channel, which is closed when the lock is released, by key
}

// lock locks key, and returns the function that unlocks it.
func (k *keyed) lock(ctx context.Context, key string) (unlock func(), err error) {
	released := make(chan struct{})
	for {
		busy, taken := k.held.LoadOrStore(key, released)
		if !taken {
			return func() {
				k.held.Delete(key)
				close(released)
			}, nil
		}
		select {
		case <-busy.(chan struct{}):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
