package docker_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/engine/enginetest"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// open opens the adapter on the shared engine.
func open(t testing.TB) (*docker.Engine, *lab.Engine) {
	t.Helper()
	private := labtest.Engine(t)
	return openAt(t, docker.Config{Host: private.Host()}), private
}

func openAt(t testing.TB, c docker.Config) *docker.Engine {
	t.Helper()
	e, err := docker.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// raw is the API's client, for calls outside engine.Engine.
func raw(t *testing.T, private *lab.Engine) *client.Client {
	t.Helper()
	api, err := client.New(client.WithHost(private.Host()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	return api
}

func TestConformance(t *testing.T) {
	e, private := open(t)
	enginetest.Run(t, enginetest.Setup{
		Engine: e,
		Image:  labtest.Busybox,
		Stop:   private.StopDaemon,
		Crash:  private.Kill,
		Start:  private.StartDaemon,
	})
}

func TestOpenDown(t *testing.T) {
	for _, host := range []string{"unix:///no/such/docker.sock", "tcp://127.0.0.1:1"} {
		_, err := docker.Open(t.Context(), docker.Config{Host: host})
		if !errors.Is(err, holdfast.ErrEngine) || !strings.Contains(holdfast.HintOf(err), "daemon running") {
			t.Errorf("%s: %v, hint %q", host, err, holdfast.HintOf(err))
		}
		if err != nil && !strings.Contains(err.Error(), host) {
			t.Errorf("%v does not name the address %s", err, host)
		}
	}
}

func TestOpenRefused(t *testing.T) {
	for _, c := range []docker.Config{
		{Host: "ssh://somewhere"},
		{Host: "/var/run/docker.sock"},
		{Host: "tcp://127.0.0.1:1", CAFile: "ca.pem"},
		{Host: "tcp://127.0.0.1:1", CAFile: "/no/ca.pem", CertFile: "/no/cert.pem", KeyFile: "/no/key.pem"},
	} {
		if _, err := docker.Open(t.Context(), c); err == nil || errors.Is(err, holdfast.ErrEngine) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestOpenNotPermitted connects without permission: as another user on this thread,
// because root has every permission.
func TestOpenNotPermitted(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "docker.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := os.Chmod(socket, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dropOverride(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := regainOverride(); err != nil {
			t.Fatal(err)
		}
	}()
	_, err = docker.Open(t.Context(), docker.Config{Host: "unix://" + socket})
	if !errors.Is(err, holdfast.ErrEngine) || !strings.Contains(holdfast.HintOf(err), "run as root") {
		t.Errorf("%v, hint %q", err, holdfast.HintOf(err))
	}
}

const unprivileged = 65534

// dropOverride makes every thread access files as the user `nobody`.
func dropOverride() error { return unix.Setresuid(-1, unprivileged, -1) }

func regainOverride() error { return unix.Setresuid(-1, 0, -1) }

func TestHostFromEnvironment(t *testing.T) {
	_, private := open(t)
	t.Setenv("DOCKER_HOST", private.Host())
	info, err := openAt(t, docker.Config{}).Info(t.Context())
	if err != nil || info.Socket != private.Socket() || info.DataRoot != private.DataRoot() {
		t.Errorf("%+v, %v", info, err)
	}
	// The configured host comes before the environment.
	if _, err := docker.Open(t.Context(), docker.Config{Host: "unix:///no/such/docker.sock"}); !errors.Is(err, holdfast.ErrEngine) {
		t.Errorf("the configured host is not used: %v", err)
	}
}

// TestLogsOfTerminal reads the log of a container with a terminal, which has no
// frames. Holdfast does not make such containers.
func TestLogsOfTerminal(t *testing.T) {
	e, private := open(t)
	id := createRaw(t, e, raw(t, private), &container.Config{
		Image: labtest.Busybox, Cmd: []string{"echo", "hello"}, Tty: true,
	}, &container.HostConfig{})
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := e.Logs(t.Context(), id, engine.LogOptions{Tail: -1, Follow: true}, &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != "hello\r\n" {
		t.Errorf("log %q", out.String())
	}
}

func createRaw(t *testing.T, e *docker.Engine, api *client.Client, config *container.Config, host *container.HostConfig) string {
	t.Helper()
	res, err := api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: config, HostConfig: host})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := api.ContainerRemove(t.Context(), res.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			if _, err := e.Inspect(t.Context(), res.ID); err == nil {
				t.Errorf("container %s stays", res.ID)
			}
		}
	})
	return res.ID
}

// TestCgroupPath compares the path with that in /proc.
func TestCgroupPath(t *testing.T) {
	e, private := open(t)
	for parent, known := range map[string]bool{"": false, private.CgroupParent() + "/deeper": true} {
		id := createRaw(t, e, raw(t, private), &container.Config{Image: labtest.Busybox},
			&container.HostConfig{Resources: container.Resources{CgroupParent: parent}})
		if err := e.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		c, err := e.Inspect(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if (c.CgroupPath != "") != known {
			t.Errorf("under %q: cgroup %q", parent, c.CgroupPath)
		}
		kernel, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(kernel), ":"+c.CgroupPath) {
			t.Errorf("cgroup %q is not in\n%s", c.CgroupPath, kernel)
		}
		if err := e.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// TestRemoveVolumes checks that an anonymous volume goes with its container and
// a named one stays.
func TestRemoveVolumes(t *testing.T) {
	e, private := open(t)
	api := raw(t, private)
	id, err := e.Create(t.Context(), engine.Spec{Image: labtest.Busybox, Mounts: []engine.Mount{
		{Type: "volume", Target: "/anonymous"},
		{Type: "volume", Source: "kept", Target: "/named"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	names := func() []string {
		res, err := api.VolumeList(t.Context(), client.VolumeListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, v := range res.Items {
			names = append(names, v.Name)
		}
		return names
	}
	if got := names(); len(got) != 2 {
		t.Errorf("volumes %q before", got)
	}
	if err := e.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got := names(); len(got) != 1 || got[0] != "kept" {
		t.Errorf("volumes %q after", got)
	}
	if _, err := api.VolumeRemove(t.Context(), "kept", client.VolumeRemoveOptions{}); err != nil {
		t.Error(err)
	}
}
