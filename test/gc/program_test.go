package gc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"holdfast/internal/control/api"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// binary is the program, built by the first test that needs it.
var binary struct {
	once sync.Once
	dir  string
	err  error
}

func program(t *testing.T) string {
	t.Helper()
	binary.once.Do(func() {
		if binary.dir, binary.err = os.MkdirTemp("", "holdfast-bin-"); binary.err != nil {
			return
		}
		binary.err = labtest.Build(context.Background(), "holdfast/cmd/holdfast", filepath.Join(binary.dir, "holdfast"))
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return filepath.Join(binary.dir, "holdfast")
}

// installed is a host with the program and a configuration.
type installed struct {
	*host
	dir  string
	addr string // address of the API
	out  bytes.Buffer
}

// install writes a configuration; collection is the part below gc.
func install(h *host, collection string) *installed {
	h.Helper()
	dir, err := os.MkdirTemp("", "hf") // a socket's path has to be short
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { os.RemoveAll(dir) })
	p := &installed{host: h, dir: dir, addr: labtest.FreePort(h)}
	p.configure(fmt.Sprintf(`
node: n1
data_dir: %s/data
run_dir: %s/run
engine: {host: "%s"}
gateway: {listen: "127.0.0.1:0"}
api: {socket: %s/run/s, listen: "%s"}
gc: {%s}
templates:
  - {name: web, image: "testserver:latest", port: 8080}
`, dir, dir, h.lab.Host(), dir, p.addr, collection))
	return p
}

func (p *installed) config() string { return filepath.Join(p.dir, "holdfast.yaml") }

func (p *installed) configure(text string) {
	p.Helper()
	if err := os.WriteFile(p.config(), []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
}

// start runs the program until the test ends, and returns once it answers.
func (p *installed) start(args ...string) {
	p.Helper()
	cmd := exec.Command(program(p.T), append(args, "--config", p.config())...)
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if err := cmd.Start(); err != nil {
		p.Fatal(err)
	}
	ended := make(chan struct{})
	var failed error
	go func() {
		failed = cmd.Wait()
		close(ended)
	}()
	p.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM) // it may have ended
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-ended
			p.Errorf("holdfast %v did not end", args)
		}
		if failed != nil {
			p.Errorf("holdfast %v: %v", args, failed)
		}
		if p.Failed() {
			p.Logf("it said:\n%s", p.out.String())
		}
	})
	poll.Until(p, "it answers", func() bool {
		select {
		case <-ended:
			p.Fatalf("it has ended: %v\n%s", failed, p.out.String())
		default:
		}
		status, _ := p.get("/healthz")
		return status == http.StatusOK
	})
}

// get sends a request to the API; status 0 means no answer.
func (p *installed) get(path string) (status int, body string) {
	p.Helper()
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get("http://" + p.addr + path)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		p.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// metric returns the value of one line, "" for none.
func (p *installed) metric(name string) string {
	p.Helper()
	_, text := p.get("/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// run runs a command as a user of this host.
func (p *installed) run(args ...string) (out string, code int) {
	p.Helper()
	cmd := exec.CommandContext(p.Context(), program(p.T), args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+filepath.Join(p.dir, "run", "s"), "HOLDFAST_CONFIG="+p.config(), "DOCKER_HOST="+p.lab.Host())
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	p.Logf("holdfast %v: %d\n%s", args, cmd.ProcessState.ExitCode(), &errs)
	return string(text), cmd.ProcessState.ExitCode()
}

// must is run for a command that must succeed.
func (p *installed) must(args ...string) string {
	p.Helper()
	out, code := p.run(args...)
	if code != 0 {
		p.Fatalf("holdfast %v: exit code %d", args, code)
	}
	return out
}

// into reads a command's JSON.
func into[T any](p *installed, args ...string) (v T) {
	p.Helper()
	if err := json.Unmarshal([]byte(p.must(append(args, "--json")...)), &v); err != nil {
		p.Fatal(err)
	}
	return v
}

// full configures every disk as too full, but not critical. Only old:1 may be removed.
const full = `every: 1s, min_age: 0s, low: 1B, high: 2B, critical: 99.9%, rules: [{kinds: [image], match: ["old:*"], pressure: true}]`

// `gc serve` without an agent waits for the announced spin-up of another tool until the tool ends
// it, and for that of a crashed tool until it expires. The metrics are those of an agent.
func TestAnnouncedToACollectorAlone(t *testing.T) {
	labtest.NeedLong(t, "package underway tests announcements, TestServeWaitsForOthers a collector that waits")
	p := install(newHost(t), full)
	p.start("gc", "serve")
	const gauge = `holdfast_spinups_under_way{kind="outside"}`
	if got := p.metric(gauge); got != "0" {
		t.Fatalf("%q are under way at first", got)
	}
	id := strings.TrimSpace(p.must("spinup", "begin", "--for", "10m", "--name", "deploy"))
	poll.Until(p, "it is counted", func() bool { return p.metric(gauge) == "1" })
	p.image("old:1", 100)
	time.Sleep(4 * time.Second) // several checks of the disk
	p.imageID("old:1")
	p.must("spinup", "end", id)
	gone := func(ref string) func() bool {
		return func() bool { _, err := p.engine.ImageID(t.Context(), ref); return err != nil }
	}
	poll.Until(p, "old:1 goes", gone("old:1"))
	if _, code := p.run("spinup", "end", id); code != 5 {
		t.Errorf("ended again: exit code %d", code)
	}
	begun := time.Now()
	p.must("spinup", "begin", "--for", "8s", "--name", "crashed")
	p.image("old:2", 100)
	poll.Until(p, "old:2 goes", gone("old:2"))
	if waited := time.Since(begun); waited < 8*time.Second {
		t.Errorf("it went after %v, the spin-up counts for 8 s", waited)
	}
	for _, name := range []string{`holdfast_gc_deletions_total{kind="image",result="deleted"}`, `holdfast_gc_suspended_seconds_total`, `holdfast_gc_disk_level{level="high"}`, `go_goroutines`} {
		if got := p.metric(name); got == "" || got == "0" {
			t.Errorf("%s is %q", name, got)
		}
	}
	if status, body := p.get("/v1/sessions"); status != http.StatusNotFound || !strings.Contains(body, "/metrics") {
		t.Errorf("it has no sessions: %d, %s", status, body)
	}
	// The next process sees earlier announcements.
	p.must("spinup", "begin", "--for", "10m")
	if s := into[gc.Status](p, "gc", "status", "--config", p.config()); s.UnderWay != 1 {
		t.Errorf("gc status sees %d under way", s.UnderWay)
	}
}

// The metrics are not served beyond loopback without TLS and a token, nor on a port that is in
// use.
func TestServeKeepsItsFiguresToItself(t *testing.T) {
	p := install(newHost(t), full)
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, x := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--api", "0.0.0.0:7071"}, 2, "not a loopback address"},
		{nil, 1, "--api none"},
	} {
		cmd := exec.CommandContext(t.Context(), program(t), append([]string{"gc", "serve", "--config", p.config()}, x.args...)...)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != x.code || !strings.Contains(string(out), x.says) {
			t.Errorf("gc serve %v: %v\n%s", x.args, err, out)
		}
	}
}

// A real agent marks spin-ups during which it deleted. The disk counts as critically full, so the
// agent deletes during spin-ups.
func TestSpinupsBesideADeletionAreMarked(t *testing.T) {
	h := newHost(t)
	h.image("kept:1", 10)
	p := install(h, `min_age: 0s, low: 1B, high: 2B, critical: 3B, rules: [{kinds: [image], match: ["old:*"], pressure: true}]`)
	p.start("agent")
	underWay := func() string { return p.metric(`holdfast_spinups_under_way{kind="other"}`) }
	// The agent may not be subscribed to the engine's events yet.
	poll.Until(p, "the agent sees what others do", func() bool {
		id := h.create("kept:1", "")
		time.Sleep(200 * time.Millisecond)
		seen := underWay() != "0"
		if err := h.engine.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return seen
	})
	poll.Until(p, "nothing is under way", func() bool { return underWay() == "0" })
	before := into[gc.Status](p, "gc", "status").Without.Count
	spinUp := func(name string, meanwhile func()) {
		t.Helper()
		res, err := h.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name: name, Image: "kept:1",
		})
		if err != nil {
			t.Fatal(err)
		}
		poll.Until(p, "it is under way", func() bool { return underWay() != "0" })
		meanwhile()
		h.start(res.ID)
	}
	h.image("old:1", 300)
	spinUp("beside", func() {
		cy := into[gc.Cycle](p, "gc", "run")
		if len(cy.Deleted) != 1 || !cy.Deleted[0].Forced || cy.Deleted[0].Name != "old:1" {
			t.Errorf("%+v", cy)
		}
	})
	h.image("old:2", 300)
	spinUp("without", func() {})
	collected := func(name string) (collected, recorded bool) {
		for _, r := range into[[]api.JudgedSpinup](p, "spinup", "ls") {
			if r.Name == name {
				return r.Collected, true
			}
		}
		return false, false
	}
	for name, want := range map[string]bool{"beside": true, "without": false} {
		var got bool
		poll.Until(p, name+" is recorded", func() (ok bool) { got, ok = collected(name); return ok })
		if got != want {
			t.Errorf("%s: collected is %v", name, got)
		}
	}
	s := into[gc.Status](p, "gc", "status")
	if s.Beside.Count != 1 || s.Without.Count <= before || s.Beside.P50 <= 0 || s.Without.P50 <= 0 {
		t.Errorf("%+v", s)
	}
	for name, want := range map[string]string{
		`holdfast_gc_spinup_seconds_count{beside_deletion="yes"}`: "1",
		`holdfast_gc_spinup_seconds_count{beside_deletion="no"}`:  fmt.Sprint(s.Without.Count),
		`holdfast_gc_forced_total`:                                "1",
	} {
		if got := p.metric(name); got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
}

// Images on the prefetch list stay, in the plans of an agent and of a collector without a running
// agent.
func TestImagesKeptPresentStay(t *testing.T) {
	h := newHost(t)
	h.image("old:1", 10)
	p := install(h, full)
	planned := func(want int, args ...string) {
		t.Helper()
		if got := into[gc.Proposal](p, append([]string{"gc", "plan"}, args...)...); len(got.Deletions) != want {
			t.Errorf("gc plan %v: %+v, want %d", args, got.Deletions, want)
		}
	}
	planned(1, "--config", p.config())
	stays := func(args ...string) string {
		for _, o := range into[gc.Inventory](p, append([]string{"gc", "ls", "--kind", "image"}, args...)...).Objects {
			if o.Name == "old:1" && o.Bytes > 0 && !o.LastUse.IsZero() {
				return o.Kept
			}
		}
		return "not in the list"
	}
	if why := stays("--config", p.config()); why != "" {
		t.Errorf("old:1 stays: %s", why)
	}
	list := filepath.Join(p.dir, "data", prefetch.FileName)
	if err := os.WriteFile(list, []byte(`{"images": ["old:1"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	planned(0, "--config", p.config())
	p.start("agent")
	if why := stays(); why != "gc.keep or the prefetch list has old:1" {
		t.Errorf("old:1 stays: %s", why)
	}
	planned(0)
	p.must("pull", "--prefetch", "--remove", "old:1")
	planned(1)
}
