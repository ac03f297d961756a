package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
)

// Options is what may differ between engines. The zero value is an engine as
// Debian's docker.io installs it.
type Options struct {
	// LiveRestore keeps containers running while the daemon is away.
	LiveRestore bool
	// Args are more arguments for dockerd ("--experimental").
	Args []string
	// Dockerd is the program; "" is the one on PATH or in /usr/sbin.
	Dockerd string
	// Path is a directory that comes first where dockerd looks for its
	// containerd, shim and runc.
	Path string
	// Dir is the parent of the engine's directory, on a disk. "" is the first suitable one
	// of TMPDIR, /tmp and /var/tmp.
	Dir string
	// InMemory allows a Dir in memory, for tests of a full disk.
	InMemory bool
}

// With returns o with the programs of another engine than the installed one: dockerd,
// docker-proxy, containerd, containerd-shim-runc-v2, and runc if it needs another.
// Containers have no seccomp profile if that runc was built without libseccomp. "" is the
// installed engine.
func (o Options) With(dir string) Options {
	if dir == "" {
		return o
	}
	o.Dockerd, o.Path = filepath.Join(dir, "dockerd"), dir
	out, err := exec.Command(filepath.Join(dir, "runc"), "--version").Output()
	if err == nil && !strings.Contains(string(out), "libseccomp") {
		o.Args = append(slices.Clone(o.Args), "--seccomp-profile=unconfined")
	}
	return o
}

// Engine is a private Docker engine. A lab may run several at once. They share the lab's
// firewall, and the start of each daemon removes the rules of the others for published
// ports. Any goroutine may call the methods.
type Engine struct {
	space   *workspace
	bridge  *bridge // nil if it could not be created
	runDir  string  // below the lab's /run, because the path of a socket must be short
	command string
	path    string // of programs, before the system's
	args    []string
	api     *client.Client

	mu     sync.Mutex
	daemon *daemon // nil while it is stopped
}

// StartEngine starts an engine and returns when it answers. It works only inside a lab. It
// first removes the directories and cgroups of killed labs.
func StartEngine(ctx context.Context, o Options) (*Engine, error) {
	if !Inside() {
		return nil, errors.New("start a private engine: this process is not in a lab")
	}
	command, err := findDaemon(o.Dockerd)
	if err != nil {
		return nil, err
	}
	space, err := newWorkspace(o.Dir, o.InMemory)
	if err != nil {
		return nil, err
	}
	e := &Engine{space: space, runDir: "/run/engine-of-" + space.name, command: command, path: o.Path}
	if err := e.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a private engine: %w", err), e.Stop())
	}
	e.args = e.daemonArgs(o)
	if err := e.StartDaemon(ctx); err != nil {
		return nil, errors.Join(err, e.Stop())
	}
	return e, nil
}

// prepare creates the directories and files that the daemon's arguments name.
func (e *Engine) prepare() error {
	if err := os.MkdirAll(e.runDir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(e.configFile(), []byte("{}\n"), 0o600); err != nil {
		return err
	}
	var err error
	if e.bridge, err = newBridge(); err != nil {
		return err
	}
	e.api, err = client.New(client.WithHost(e.Host()))
	return err
}

// daemonArgs returns the arguments of dockerd. They name everything that it would otherwise
// share with the host's engine.
func (e *Engine) daemonArgs(o Options) []string {
	args := []string{
		"--config-file=" + e.configFile(),
		"--data-root=" + e.DataRoot(),
		"--exec-root=" + filepath.Join(e.runDir, "exec"),
		"--pidfile=" + filepath.Join(e.runDir, "docker.pid"),
		"--host=" + e.Host(),
		// With the systemd driver the parent would be a slice of the host's systemd.
		"--exec-opt=native.cgroupdriver=cgroupfs",
		"--cgroup-parent=/" + e.space.name,
		"--bridge=" + e.bridge.link.Name,
		"--default-address-pool=base=" + e.bridge.pool + ",size=24",
		"--log-level=warn",
	}
	if o.LiveRestore {
		args = append(args, "--live-restore")
	}
	return append(args, o.Args...)
}

// Host returns the address of the engine's API, as in DOCKER_HOST. It is reachable only
// inside the lab.
func (e *Engine) Host() string { return "unix://" + e.Socket() }

// Socket returns the path of the engine's unix socket.
func (e *Engine) Socket() string { return filepath.Join(e.runDir, "docker.sock") }

// DataRoot returns the engine's data directory.
func (e *Engine) DataRoot() string { return filepath.Join(e.space.dir, "data") }

// Scratch returns the path of a directory on a disk, for users of the engine. A caller
// creates it; Stop removes it.
func (e *Engine) Scratch() string { return filepath.Join(e.space.dir, "scratch") }

// CgroupParent returns the cgroup of the containers, as a path below each cgroup mount.
func (e *Engine) CgroupParent() string { return "/" + e.space.name }

// LogFile returns the path of the daemon's log.
func (e *Engine) LogFile() string { return filepath.Join(e.space.dir, "dockerd.log") }

func (e *Engine) configFile() string { return filepath.Join(e.space.dir, "daemon.json") }

// Pid returns the pid of the daemon, 0 while it is stopped.
func (e *Engine) Pid() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.daemon == nil {
		return 0
	}
	return e.daemon.pid()
}

// StartDaemon starts the daemon with the engine's data and returns when it answers. It does
// nothing if the daemon runs.
func (e *Engine) StartDaemon(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.daemon != nil && e.daemon.running() {
		return nil
	}
	for try := 1; ; try++ {
		d, err := startDaemon(e.command, e.path, e.args, e.LogFile())
		if err != nil {
			return err
		}
		e.daemon = d
		if err = d.waitReady(ctx, e.ping); !errors.Is(err, errSlowContainerd) || try == maxStarts {
			return err
		}
	}
}

func (e *Engine) ping(ctx context.Context) error {
	_, err := e.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	return err
}

// maxStarts is the maximum number of starts of a daemon whose containerd is too slow. A
// service manager would restart it, too.
const maxStarts = 4

// StopDaemon ends the daemon as a service manager does, with SIGTERM, and SIGKILL after 30
// seconds. Without live restore the daemon first ends the containers.
func (e *Engine) StopDaemon() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.daemon == nil {
		return nil
	}
	err := e.daemon.stop(30 * time.Second)
	e.daemon = nil
	return err
}

// Restart stops the daemon and starts it again. Containers continue if the engine has
// LiveRestore.
func (e *Engine) Restart(ctx context.Context) error {
	if err := e.StopDaemon(); err != nil {
		return err
	}
	return e.StartDaemon(ctx)
}

// Kill ends the daemon with SIGKILL. Shims and containers continue. StartDaemon starts the
// daemon again.
func (e *Engine) Kill() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.daemon == nil {
		return nil
	}
	err := e.daemon.kill()
	e.daemon = nil
	return err
}

// Stop kills the engine and all its containers and removes its data. It must be the last
// call.
func (e *Engine) Stop() error {
	errs := []error{e.Kill()}
	if e.api != nil {
		errs = append(errs, e.api.Close())
	}
	errs = append(errs,
		removeCgroup(e.space.name),
		killMentioning(e.space.name),
		detachBelow(e.runDir),
		os.RemoveAll(e.runDir),
	)
	if e.bridge != nil {
		errs = append(errs, e.bridge.remove())
	}
	return errors.Join(append(errs, e.space.remove())...)
}

// killMentioning kills the processes that have word in their arguments. The engine's shims
// and runtimes all have its directory there.
func killMentioning(word string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		pids, err := mentioning(word)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v outlive their engine", pids)
		}
		for _, pid := range pids {
			// ESRCH: it has just ended.
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// mentioning returns the processes of this pid namespace, without this one, that have word
// in their arguments. A zombie has no arguments.
func mentioning(word string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() || pid == 1 {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err == nil && strings.Contains(string(cmdline), word) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
