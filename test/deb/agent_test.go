package deb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/control/api"
	"holdfast/test/lab/labtest"
)

// patience is the limit of each wait. It is no measurement.
const patience = 2 * time.Minute

// An agent runs from the files of the package. An upgrade of the package refuses no connect and
// keeps the session. A removal drains the host.
func TestAgentOfThePackage(t *testing.T) {
	labtest.NeedLong(t, "TestServicesOfThePackage upgrades and removes the package on a machine with systemd")
	h := newHost(t)
	engine := labtest.Engine(t)
	first, second := packages(t)
	h.dpkg("--install", first)
	h.write("etc/holdfast/holdfast.yaml", fmt.Sprintf(`engine: {host: %q}
data_dir: %s
run_dir: %s
api: {socket: %s, listen: ""}
gateway: {listen: %q}
templates: [{name: web, image: %q, port: 8080}]
`, engine.Host(), h.path("var/lib/holdfast"), h.path("run/holdfast"), h.path("run/holdfast/holdfast.sock"), labtest.FreePort(t), labtest.TestServer))
	gateway := h.startAgent()

	before := h.session("alice", gateway)
	stop, asked, failed := knock(t, gateway)
	h.dpkg("--install", "--force-confold", second)
	h.say("agent", "--upgrade", "--trial", "1s")
	if got := h.say("version"); strings.Count(got, "v1.1.0") != 2 {
		t.Errorf("after the upgrade program and agent are\n%s", got)
	}
	stop()
	if n := asked.Load(); failed.Load() > 0 || n < 100 {
		t.Errorf("%d of %d connects failed", failed.Load(), n)
	}
	after := h.session("alice", gateway)
	if after.Epoch != before.Epoch || after.ContainerID != before.ContainerID {
		t.Errorf("the session was %+v and is %+v", before, after)
	}

	h.dpkg("--remove", "holdfast")
	if c, err := net.DialTimeout("tcp", gateway, time.Second); err == nil {
		c.Close()
		t.Error("after the removal a process still serves the gateway")
	}
	// The container is dead, but the engine may report that with a delay.
	if c, err := labtest.Docker(t).Inspect(t.Context(), after.ContainerID); err == nil && c.State == "running" && syscall.Kill(c.Pid, 0) == nil {
		t.Errorf("after the removal the session's container runs still, with pid %d", c.Pid)
	}
}

// startAgent runs the installed program with the installed configuration, waits until it serves,
// and returns the address of its gateway.
func (h host) startAgent() (gateway string) {
	h.t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(h.path("usr/bin/holdfast"), "agent", "--config", h.path("etc/holdfast/holdfast.yaml"))
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	h.t.Cleanup(func() {
		// After an upgrade the agent is another process, which the removal has ended.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if h.t.Failed() {
			h.t.Logf("the agent's log:\n%s", &out)
		}
	})
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(50 * time.Millisecond) {
		if exec.Command(h.path("usr/bin/holdfast"), "--socket", h.path("run/holdfast/holdfast.sock"), "session", "ls").Run() == nil {
			_, rest, _ := strings.Cut(h.read("etc/holdfast/holdfast.yaml"), "gateway: {listen: \"")
			gateway, _, _ = strings.Cut(rest, "\"")
			return gateway
		}
	}
	h.t.Fatal("the agent does not come up")
	return ""
}

// say runs a command of the installed program and returns its output.
func (h host) say(args ...string) string {
	h.t.Helper()
	out, err := exec.CommandContext(h.t.Context(), h.path("usr/bin/holdfast"), append([]string{"--socket", h.path("run/holdfast/holdfast.sock")}, args...)...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("holdfast %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// session requests a session at the gateway, and returns the agent's record of it.
func (h host) session(key, gateway string) (s api.Session) {
	h.t.Helper()
	if err := get("http://" + gateway + "/s/" + key + "/"); err != nil {
		h.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(h.say("session", "show", key, "--json")), &s); err != nil {
		h.t.Fatal(err)
	}
	return s
}

// get sends a GET over a new connection.
func get(url string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}

// knock opens connections until stop is called, and counts them.
func knock(t *testing.T, gateway string) (stop func(), asked, failed *atomic.Int64) {
	asked, failed = new(atomic.Int64), new(atomic.Int64)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
			}
			asked.Add(1)
			if err := get("http://" + gateway + "/s/alice/"); err != nil {
				failed.Add(1)
				t.Log(err)
			}
		}
	}()
	return func() { close(quit); <-done }, asked, failed
}
