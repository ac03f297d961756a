package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"holdfast/internal/hosts/spinup"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
	"holdfast/test/poll"
)

// tool is another client of an engine.
type tool struct {
	t   *testing.T
	api *client.Client
}

func newTool(t *testing.T, host string) *tool {
	t.Helper()
	c, err := client.New(client.WithHost(host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &tool{t, c}
}

// create creates a container of busybox and returns the duration of the call.
func (x *tool) create(name string, c container.Config, h container.HostConfig) (id string, took time.Duration) {
	x.t.Helper()
	if c.Image == "" {
		c.Image = "busybox:latest"
	}
	if c.Cmd == nil {
		c.Cmd = []string{"/bin/sleep", "1000"}
	}
	c.StopSignal = "SIGKILL" // an engine that ends waits 10 s for containers that ignore SIGTERM
	begun := time.Now()
	res, err := x.api.ContainerCreate(x.t.Context(), client.ContainerCreateOptions{Name: name, Config: &c, HostConfig: &h})
	if err != nil {
		x.t.Fatal(err)
	}
	took = time.Since(begun)
	x.t.Cleanup(func() { x.remove(res.ID) })
	return res.ID, took
}

func (x *tool) remove(id string) {
	// An error: it is gone.
	_, _ = x.api.ContainerRemove(context.Background(), id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
}

// start starts a container and returns the duration of the call.
func (x *tool) start(id string) (time.Duration, error) {
	begun := time.Now()
	_, err := x.api.ContainerStart(x.t.Context(), id, client.ContainerStartOptions{})
	return time.Since(begun), err
}

// healthy is a healthcheck that succeeds, or fails.
func healthy(yes bool) *container.HealthConfig {
	test := "/bin/false"
	if yes {
		test = "/bin/true"
	}
	return &container.HealthConfig{Test: []string{"CMD", test}, Interval: 200 * time.Millisecond, Timeout: 10 * time.Second, Retries: 2}
}

// Another tool uses the engine. The agent's records of these spin-ups agree with the times
// that the tool's client measured.
func TestSpinupsByOthers(t *testing.T) {
	needDocker(t)
	h := newHost(t, "")
	h.start()
	x := newTool(t, h.docker)
	var (
		plain   container.Config
		started = func(name string, c container.Config, host container.HostConfig) (create, start time.Duration) {
			t.Helper()
			id, create := x.create(name, c, host)
			start, err := x.start(id)
			if err != nil {
				t.Fatal(err)
			}
			return create, start
		}
	)
	create, start := started("plain", plain, container.HostConfig{})
	r := h.spinupOf("plain", 1)[0]
	if r.Kind != spinup.ForOther || r.Outcome != spinup.OK || r.Image != "busybox:latest" || r.Pull != nil || len(r.Times) != 2 {
		t.Errorf("%+v", r)
	}
	// Both are parts of the client's wait.
	if got := time.Duration(r.Times[spinup.Create]); got <= 0 || got > create {
		t.Errorf("the create took %v, for the client %v", got, create)
	}
	if got := time.Duration(r.Times[spinup.Start]); got <= 0 || got > start {
		t.Errorf("the start took %v, for the client %v", got, start)
	}
	t.Logf("create %v of %v, start %v of %v", r.Times[spinup.Create], create, r.Times[spinup.Start], start)

	started("healthy", container.Config{Healthcheck: healthy(true)}, container.HostConfig{})
	if r := h.spinupOf("healthy", 1)[0]; r.Outcome != spinup.OK || r.Times[spinup.Ready] <= 0 || r.Times[spinup.Ready] > r.Took {
		t.Errorf("%+v", r)
	}
	started("unhealthy", container.Config{Healthcheck: healthy(false)}, container.HostConfig{})
	if r := h.spinupOf("unhealthy", 1)[0]; r.Outcome != spinup.Failed || r.Failed != spinup.Ready || r.Error == "" {
		t.Errorf("%+v", r)
	}
	started("short", container.Config{Cmd: []string{"/bin/true"}}, container.HostConfig{AutoRemove: true})
	if r := h.spinupOf("short", 1)[0]; r.Outcome != spinup.OK {
		t.Errorf("%+v", r)
	}
	started("alone", plain, container.HostConfig{NetworkMode: "none"})
	if r := h.spinupOf("alone", 1)[0]; r.Outcome != spinup.OK || r.Times[spinup.Create] <= 0 {
		t.Errorf("%+v", r)
	}
	for name, host := range map[string]container.HostConfig{"wrong": {}, "wrong-and-removed": {AutoRemove: true}} {
		id, _ := x.create(name, container.Config{Cmd: []string{"/no/such/program"}}, host)
		if _, err := x.start(id); err == nil {
			t.Fatal("a program that there is not was started")
		}
		if r := h.spinupOf(name, 1)[0]; r.Outcome != spinup.Failed || r.Failed != spinup.Start || r.Error == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	id, _ := x.create("unwanted", plain, container.HostConfig{})
	x.remove(id)
	if r := h.spinupOf("unwanted", 1)[0]; r.Outcome != spinup.Stopped || r.Cause != spinup.Canceled {
		t.Errorf("%+v", r)
	}
	x.create("own", container.Config{Labels: map[string]string{spinup.LabelJob: "run"}}, container.HostConfig{})
	x.create("waiting", plain, container.HostConfig{})
	poll.Until(t, "a created container is under way", func() bool { return h.metric(`holdfast_spinups_under_way{kind="other"}`) == "1" })
	h.open("alice") // a session is not another tool's container
	h.spinupOf("alice", 1)
	others := 0
	for _, r := range h.spinups() {
		if r.Kind == spinup.ForOther {
			others++
		}
		if r.Name == "own" || r.Name == "waiting" {
			t.Errorf("%+v", r)
		}
	}
	if others != 8 {
		t.Errorf("%d spin-ups by others", others)
	}
}

// The engine restarts while a container of another tool is created and not yet started.
func TestOthersOverARestart(t *testing.T) {
	labtest.NeedLong(t, "TestSpinupsByOthers has one agent")
	private := labtest.Private(t, lab.Options{})
	busybox, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	if err := private.Import(t.Context(), busybox); err != nil {
		t.Fatal(err)
	}
	h := newHostOn(t, private.Host(), "")
	h.start()
	x := newTool(t, h.docker)
	waiting, _ := x.create("waiting", container.Config{}, container.HostConfig{})
	poll.Until(t, "the agent has seen it", func() bool { return h.metric(`holdfast_spinups_under_way{kind="other"}`) == "1" })
	if err := private.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	// At once, before the agent has reconnected.
	if _, err := x.start(waiting); err != nil {
		t.Fatal(err)
	}
	late, _ := x.create("late", container.Config{}, container.HostConfig{})
	if _, err := x.start(late); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"waiting", "late"} {
		if r := h.spinupOf(name, 1)[0]; r.Outcome != spinup.OK || r.Times[spinup.Create] <= 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	// After another restart, recorded spin-ups are not recorded again.
	if err := private.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, _ := x.create("after", container.Config{}, container.HostConfig{})
	if _, err := x.start(after); err != nil {
		t.Fatal(err)
	}
	h.spinupOf("after", 1)
	for _, name := range []string{"waiting", "late"} {
		h.spinupOf(name, 1)
	}
}

// A pull by another tool that hangs in a layer is listed as under way, although the engine
// has no event for it.
func TestPullByOthersIsUnderWay(t *testing.T) {
	needDocker(t)
	h := newHost(t, "")
	reg, err := registry.Start(t.Context(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := registry.StartProxy(reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(proxy.Stop(), reg.Stop()); err != nil {
			t.Error(err)
		}
	})
	if _, err := reg.Push(t.Context(), serverImage(t), "theirs:1", registry.Options{}); err != nil {
		t.Fatal(err)
	}
	h.start()
	const gauge = `holdfast_spinups_under_way{kind="other"}`
	proxy.Set(registry.Faults{Rate: 4 << 10}) // bytes a second: minutes for the layer
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x := newTool(t, h.docker)
	pull, err := x.api.ImagePull(ctx, proxy.Host()+"/theirs:1", client.ImagePullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer pull.Close()
	poll.Until(t, "the pull is seen", func() bool { return h.metric(gauge) == "1" })
	cancel()
	poll.Until(t, "its end is seen", func() bool { return h.metric(gauge) == "0" })
	for _, r := range h.spinups() {
		t.Errorf("half a pull is recorded: %+v", r)
	}
}
