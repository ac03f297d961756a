package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"

	"holdfast"
)

// ContainerdOptions are the options of a Containerd. The zero value selects the installed
// containerd.
type ContainerdOptions struct {
	// Command is the program. "" is containerd in $PATH or in /usr/bin.
	Command string
	// Path is the first directory in which it looks for its shim and runc.
	Path string
}

// Containerd is a private containerd. A lab may run several at once. Any goroutine may call
// the methods.
type Containerd struct {
	space   *workspace
	runDir  string
	command string
	path    string

	mu     sync.Mutex
	daemon *daemon // nil while it is stopped
}

// containerdConfig names everything that it would otherwise share with the host's
// containerd, and disables the plugins that no test uses (containerd-config.toml(5)).
const containerdConfig = `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = %q
[debug]
level = "warn"
`

// StartContainerd starts a containerd and returns when it answers. It works only inside a
// lab. It first removes the directories and cgroups of killed labs.
func StartContainerd(ctx context.Context, o ContainerdOptions) (*Containerd, error) {
	if !Inside() {
		return nil, errors.New("start a private containerd: this process is not in a lab")
	}
	command, err := findContainerd(o.Command)
	if err != nil {
		return nil, err
	}
	space, err := newWorkspace("", false)
	if err != nil {
		return nil, err
	}
	c := &Containerd{space: space, runDir: "/run/engine-of-" + space.name, command: command, path: o.Path}
	if err := errors.Join(os.MkdirAll(c.runDir, 0o700), c.configure()); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a private containerd: %w", err), c.Stop())
	}
	if err := c.StartDaemon(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func findContainerd(given string) (string, error) {
	candidates := []string{"containerd", "/usr/bin/containerd", "/usr/local/bin/containerd"}
	if given != "" {
		candidates = []string{given}
	}
	for _, name := range candidates {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", holdfast.WithHint(fmt.Errorf("no containerd is installed (%s not found)", candidates[0]), "apt-get install containerd")
}

func (c *Containerd) configure() error {
	text := fmt.Sprintf(containerdConfig, c.Root(), filepath.Join(c.runDir, "state"), c.Socket())
	return os.WriteFile(c.configFile(), []byte(text), 0o600)
}

// Host returns the address of its API, unix:///path. It is reachable only inside the lab.
func (c *Containerd) Host() string { return "unix://" + c.Socket() }

// Socket returns the path of its unix socket.
func (c *Containerd) Socket() string { return filepath.Join(c.runDir, "containerd.sock") }

// Root returns its data directory.
func (c *Containerd) Root() string { return filepath.Join(c.space.dir, "data") }

// Scratch returns the path of a directory on a disk, for users of the engine. A caller
// creates it; Stop removes it.
func (c *Containerd) Scratch() string { return filepath.Join(c.space.dir, "scratch") }

// CgroupParent returns a cgroup for containers, as a path below each cgroup mount. Its
// processes end with the engine.
func (c *Containerd) CgroupParent() string { return "/" + c.space.name }

// LogFile returns the path of the daemon's log.
func (c *Containerd) LogFile() string { return filepath.Join(c.space.dir, "containerd.log") }

func (c *Containerd) configFile() string { return filepath.Join(c.space.dir, "config.toml") }

// Pid returns the pid of the daemon, 0 while it is stopped.
func (c *Containerd) Pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.daemon == nil {
		return 0
	}
	return c.daemon.pid()
}

// StartDaemon starts the daemon with the engine's data and returns when it answers. It does
// nothing if the daemon runs.
func (c *Containerd) StartDaemon(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.daemon != nil && c.daemon.running() {
		return nil
	}
	d, err := startDaemon(c.command, c.path, []string{"--config=" + c.configFile()}, c.LogFile())
	if err != nil {
		return err
	}
	c.daemon = d
	return d.waitReady(ctx, c.ping)
}

// ping asks over a new connection, because a failed gRPC connection waits before its next
// attempt.
func (c *Containerd) ping(ctx context.Context) error {
	if _, err := os.Stat(c.Socket()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	api, err := client.New(c.Socket())
	if err != nil {
		return err
	}
	_, err = api.Version(ctx)
	return errors.Join(err, api.Close())
}

// StopDaemon ends the daemon as a service manager does, with SIGTERM, and SIGKILL after 30
// seconds. Shims and containers continue.
func (c *Containerd) StopDaemon() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.daemon == nil {
		return nil
	}
	err := c.daemon.stop(30 * time.Second)
	c.daemon = nil
	return err
}

// Restart stops the daemon and starts it again. Containers continue.
func (c *Containerd) Restart(ctx context.Context) error {
	if err := c.StopDaemon(); err != nil {
		return err
	}
	return c.StartDaemon(ctx)
}

// Kill ends the daemon with SIGKILL. Shims and containers continue. StartDaemon starts the
// daemon again.
func (c *Containerd) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.daemon == nil {
		return nil
	}
	err := c.daemon.kill()
	c.daemon = nil
	return err
}

// Stop kills the engine and all its containers and removes its data. It must be the last
// call.
func (c *Containerd) Stop() error {
	return errors.Join(
		c.Kill(),
		removeCgroup(c.space.name),
		killMentioning(c.space.name),
		detachBelow(c.runDir),
		os.RemoveAll(c.runDir),
		c.space.remove(),
	)
}
