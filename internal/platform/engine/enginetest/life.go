package enginetest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
)

func (s *suite) info(t *testing.T) {
	info, err := s.Engine.Info(s.context(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"name": info.Name, "version": info.Version, "API version": info.APIVersion,
		"storage driver": info.StorageDriver, "data root": info.DataRoot, "kernel": info.Kernel,
	} {
		if value == "" {
			t.Errorf("no %s in %+v", name, info)
		}
	}
	if !slices.Contains([]string{engine.GraphDriver, engine.ContainerdStore, engine.ClientStore}, info.ImageStore) {
		t.Errorf("image store %q", info.ImageStore)
	}
	if info.CgroupVersion != "1" && info.CgroupVersion != "2" {
		t.Errorf("cgroup version %q", info.CgroupVersion)
	}
	if fi, err := os.Stat(info.Socket); err != nil || fi.Mode().Type() != os.ModeSocket {
		t.Errorf("%q is no socket: %v", info.Socket, err)
	}
}

func (s *suite) imageID(t *testing.T) {
	id, err := s.Engine.ImageID(s.context(t), s.Image)
	if err != nil || !strings.HasPrefix(id, "sha256:") {
		t.Errorf("image %s: id %q, %v", s.Image, id, err)
	}
	if same, err := s.Engine.ImageID(s.context(t), id); err != nil || same != id {
		t.Errorf("image %s by its id: %q, %v", id, same, err)
	}
	if _, err := s.Engine.ImageID(s.context(t), "no/such:image"); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("an unknown image: %v", err)
	}
	if _, err := s.Engine.ImageDigest(s.context(t), "no/such:image"); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("the digest of an unknown image: %v", err)
	}
}

// life tests a container through its whole life in a session.
func (s *suite) life(t *testing.T) {
	before := time.Now().Add(-time.Minute) // the engine's clock may differ
	spec := s.spec("sh", "-c", "sleep inf; exit 9")
	spec.Env = []string{"HOLDFAST_SESSION=alice", "EMPTY="}
	spec.Labels["holdfast.session"] = "alice"
	spec.Hostname = "alice"
	id := s.create(t, spec)

	c := s.inspect(t, id)
	if c.ID != id || len(id) != 64 || c.Name != spec.Name || c.Image != spec.Image {
		t.Errorf("created as %q %q %q, wanted %q %q", c.ID, c.Name, c.Image, spec.Name, spec.Image)
	}
	if c.State != "created" || c.Running() || c.Pid != 0 || !c.StartedAt.IsZero() || !c.FinishedAt.IsZero() {
		t.Errorf("before the start: %+v", c)
	}
	if c.Created.Before(before) || c.Labels["holdfast.session"] != "alice" || c.Restart != engine.RestartNo {
		t.Errorf("created as %+v", c)
	}
	for _, kv := range spec.Env {
		if !slices.Contains(c.Env, kv) {
			t.Errorf("environment %q lacks %q", c.Env, kv)
		}
	}

	if err := s.Engine.Start(s.context(t), id); err != nil {
		t.Fatal(err)
	}
	c = s.inspect(t, id)
	if !c.Running() || c.Pid <= 0 || c.StartedAt.Before(before) || len(c.Addresses) == 0 {
		t.Errorf("after the start: %+v", c)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", c.Pid)); err != nil {
		t.Errorf("init of a running container: %v", err)
	}
	if byName := s.inspect(t, spec.Name); byName.ID != id {
		t.Errorf("%s is %s, not %s", spec.Name, byName.ID, id)
	}
	if got := s.shell(t, id, "echo $HOLDFAST_SESSION $(hostname)"); got != "alice alice" {
		t.Errorf("session and host name inside: %q", got)
	}
	if err := s.Engine.Start(s.context(t), id); err != nil {
		t.Errorf("start of a running container: %v", err)
	}

	// The container's end kills the command, if the command has not ended yet.
	code, err := s.Engine.Exec(s.context(t), id, engine.Exec{Command: []string{"killall", "sleep"}})
	if err != nil || code != 0 && code != 128+int(unix.SIGKILL) {
		t.Errorf("killall sleep: code %d, %v", code, err)
	}
	c = s.waitExit(t, id)
	if c.ExitCode != 9 || c.Pid != 0 || c.FinishedAt.Before(c.StartedAt) || c.OOMKilled {
		t.Errorf("after its end: %+v", c)
	}
}

func (s *suite) createErrors(t *testing.T) {
	spec := s.spec()
	spec.Image = "no/such:image"
	if _, err := s.Engine.Create(s.context(t), spec); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("of an unknown image: %v", err)
	}
	taken := s.spec()
	s.create(t, taken)
	if _, err := s.Engine.Create(s.context(t), taken); !errors.Is(err, engine.ErrConflict) {
		t.Errorf("with a name in use: %v", err)
	}
	spec = s.spec()
	spec.Mounts = []engine.Mount{{Type: "magic", Target: "/mnt"}}
	if _, err := s.Engine.Create(s.context(t), spec); err == nil {
		t.Error("a mount of no known type: no error")
	}
	for _, platform := range []string{"linux", "linux/mips64"} {
		spec = s.spec()
		spec.Platform = platform
		if _, err := s.Engine.Create(s.context(t), spec); err == nil || !strings.Contains(err.Error(), platform) {
			t.Errorf("for %s: %v", platform, err)
		}
	}
	spec = s.spec()
	spec.Platform = "linux/" + runtime.GOARCH
	s.create(t, spec)
	spec = s.spec()
	missing := t.TempDir() + "/missing"
	spec.Mounts = []engine.Mount{{Type: "bind", Source: missing, Target: "/mnt"}}
	if _, err := s.Engine.Create(s.context(t), spec); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("a bind of a missing directory: %v", err)
	}
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the engine made the source of a bind: %v", err)
	}
}

func (s *suite) startErrors(t *testing.T) {
	id := s.create(t, s.spec("/no/such/program"))
	err := s.Engine.Start(s.context(t), id)
	if err == nil || errors.Is(err, holdfast.ErrEngine) || errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("start of a missing program: %v", err)
	}
	if c := s.inspect(t, id); c.Running() || c.ExitCode != 127 {
		t.Errorf("after a failed start: %s, exit code %d", c.State, c.ExitCode)
	}
}

// unknownContainer checks the error of every method for a container that does not
// exist.
func (s *suite) unknownContainer(t *testing.T) {
	for name, call := range s.calls(t, "no-such-container") {
		err := call(s.context(t))
		switch name {
		case "Remove":
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case "Ping", "Info", "ImageID", "ImageDigest", "Create", "List", "Pull":
		default:
			if !errors.Is(err, holdfast.ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func (s *suite) list(t *testing.T) {
	var ids []string
	for i := range 3 {
		spec := s.spec()
		spec.Labels["holdfast.list"] = fmt.Sprint(i)
		ids = append(ids, s.create(t, spec))
	}
	if err := s.Engine.Start(s.context(t), ids[1]); err != nil {
		t.Fatal(err)
	}
	expect := func(labels map[string]string, want ...string) []engine.Container {
		t.Helper()
		list, err := s.Engine.List(s.context(t), labels)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range list {
			got = append(got, c.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("list of %v: %v, wanted %v", labels, got, want)
		}
		return list
	}
	all := expect(map[string]string{"holdfast.list": ""}, ids...)
	expect(map[string]string{"holdfast.list": "1", label: "yes"}, ids[1])
	expect(map[string]string{"holdfast.list": "1", label: "no"})
	expect(map[string]string{"holdfast.other": ""})
	for i, c := range all {
		full := s.inspect(t, c.ID)
		if c.Name != full.Name || c.Image != full.Image || c.State != full.State ||
			c.Labels["holdfast.list"] != fmt.Sprint(i) || c.Created.Unix() != full.Created.Unix() {
			t.Errorf("listed as %+v, inspected as %+v", c, full)
		}
	}
}

func (s *suite) kill(t *testing.T) {
	id := s.start(t, s.spec("sh", "-c", "trap '' TERM INT; sleep inf"))
	pid := s.inspect(t, id).Pid
	if err := s.Engine.Kill(s.context(t), id); err != nil {
		t.Fatal(err)
	}
	if c := s.inspect(t, id); c.Running() || c.ExitCode != 137 {
		t.Errorf("after a kill: %s, exit code %d", c.State, c.ExitCode)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("init after a kill: %v", err)
	}
	if err := s.Engine.Kill(s.context(t), id); err != nil {
		t.Errorf("kill of a dead container: %v", err)
	}
	other := s.start(t, s.spec("sh", "-c", "exit 143"))
	s.waitExit(t, other)
	info, err := s.Engine.Info(s.context(t))
	if err != nil {
		t.Fatal(err)
	}
	signals := info.Name == "docker" // see Stopped
	for id, want := range map[string]bool{id: signals, other: false} {
		if got, err := s.Engine.Stopped(s.context(t), id); err != nil || got != want {
			t.Errorf("stopped by the engine: %v, %v, want %v", got, err, want)
		}
	}
}

func (s *suite) remove(t *testing.T) {
	id := s.start(t, s.spec())
	var group errgroup.Group
	for range 4 { // concurrently, as a drain and a clean-up may do
		group.Go(func() error { return s.Engine.Remove(s.context(t), id) })
	}
	if err := group.Wait(); err != nil {
		t.Errorf("remove of a running container: %v", err)
	}
	if _, err := s.Engine.Inspect(s.context(t), id); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("inspect of a removed container: %v", err)
	}
	if err := s.Engine.Remove(s.context(t), id); err != nil {
		t.Errorf("remove of a removed container: %v", err)
	}
}

// endSleep ends the sleep that a container's shell has started or is about to start.
// The result of its command does not matter: it may die with the container.
func (s *suite) endSleep(t *testing.T, id string) {
	t.Helper()
	_, _ = s.Engine.Exec(s.context(t), id, engine.Exec{Command: []string{"sh", "-c", "until killall -9 sleep; do usleep 10000; done"}})
}

// restartPolicy checks that the engine restarts a container, and no longer does when
// its policy is switched off.
func (s *suite) restartPolicy(t *testing.T) {
	for _, p := range []engine.RestartPolicy{engine.RestartOnFailure, engine.RestartUnlessStopped, engine.RestartAlways} {
		// Not only sleep: pid 1 cannot be killed from inside.
		spec := s.spec("sh", "-c", "sleep inf; exit 1")
		spec.Restart = p
		id := s.start(t, spec)
		first := s.inspect(t, id)
		if first.Restart != p {
			t.Errorf("policy %q, wanted %q", first.Restart, p)
		}
		s.endSleep(t, id)
		s.waitFor(t, id, func(c engine.Container) bool { return c.Running() && c.Pid != first.Pid })

		if err := s.Engine.SetRestartPolicy(s.context(t), id, engine.RestartNo); err != nil {
			t.Fatal(err)
		}
		if now := s.inspect(t, id); now.Restart != engine.RestartNo {
			t.Errorf("policy %q after it was switched off", now.Restart)
		}
		s.endSleep(t, id)
		s.waitExit(t, id)
	}
}

// concurrent makes twenty containers at once.
func (s *suite) concurrent(t *testing.T) {
	const n = 20
	ids := make([]string, n)
	var group errgroup.Group
	for i := range n {
		spec := s.spec()
		group.Go(func() error {
			var err error
			if ids[i], err = s.Engine.Create(s.context(t), spec); err != nil {
				return err
			}
			return s.Engine.Start(s.context(t), ids[i])
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	addresses := map[string]bool{}
	for _, id := range ids {
		if id == "" {
			continue
		}
		c := s.inspect(t, id)
		if !c.Running() {
			t.Errorf("container %s is %s", id, c.State)
		}
		for _, a := range c.Addresses {
			addresses[a] = true
		}
		if err := s.Engine.Remove(s.context(t), id); err != nil {
			t.Error(err)
		}
	}
	if len(addresses) != n {
		t.Errorf("%d containers have %d addresses", n, len(addresses))
	}
}
