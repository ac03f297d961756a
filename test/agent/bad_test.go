package agent

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// run runs the agent until it ends by itself.
func (h *host) run() result {
	h.t.Helper()
	h.out.Reset()
	h.errs.Reset()
	h.launch(&h.out, &h.errs)
	code := h.wait()
	return result{h.out.String(), h.errs.String(), code}
}

func TestConfigurationThatIsWrong(t *testing.T) {
	h := newHost(t, "")
	for _, c := range []struct {
		name, extra, errorHas, hintHas string
	}{
		{"unknown key", "sessions:\n  idle_stopp: 3s", "column 3", "spelling"},
		{"not YAML", "sessions: [", "line ", "docs/configuration.md"},
		{"wrong type", "sessions: {boots: many}", "line ", "docs/configuration.md"},
		{"no template", "templates: []", "templates", "docs/configuration.md"},
		{"port", "templates: [{name: a, image: b, port: 70000}]", "port: 70000", "docs/configuration.md"},
		{"timing", "store: {ttl: 5s}", "fence + renew/4 + kill_budget", "docs/configuration.md"},
		{"listener", "drain: {budget: 0s}", "drain.budget", "docs/configuration.md"},
	}[:labtest.Count(2, 7)] { // package config has all of them
		t.Run(c.name, func(t *testing.T) {
			h.configure(c.extra)
			wantError(t, h.run(), 2, c.errorHas, c.hintHas)
		})
	}
	t.Run("gateway for all", func(t *testing.T) {
		h.configure("")
		r := h.cli("agent", "--config", h.configFile(), "--gateway", "0.0.0.0:7070")
		wantError(t, r, 2, "not a loopback address", "gateway.tokens_file")
	})
	t.Run("missing file", func(t *testing.T) {
		wantError(t, h.cli("agent", "--config", h.dir+"/nowhere.yaml"), 2, "nowhere.yaml", "--config")
	})
}

func TestEngineThatIsDownAtTheStart(t *testing.T) {
	h := newHostOn(t, "unix:///nowhere/docker.sock", "")
	wantError(t, h.run(), 4, "/nowhere/docker.sock", "")
}

func TestEngineThatIsOnAnotherHost(t *testing.T) {
	h := newHostOn(t, "tcp://127.0.0.1:1", "")
	r := h.run()
	if r.code == 0 || !strings.Contains(r.err, "error: ") {
		t.Errorf("%+v", r)
	}
}

func TestPortThatIsTaken(t *testing.T) {
	h := newHost(t, "")
	l, err := net.Listen("tcp", h.gateway)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wantError(t, h.run(), 1, h.gateway+" is in use", "--gateway")
}

func TestTwoAgentsOnOneHost(t *testing.T) {
	h := newHost(t, "")
	h.start()
	h.open("alice")
	r := h.cli("agent", "--config", h.configFile())
	wantError(t, r, 1, "lock", "agent stop --keep")
	// Neither does an agent with its own data directory, which would take over the
	// deadman of the first one.
	r = h.cli("agent", "--config", h.configFile(), "--data-dir", filepath.Join(h.dir, "data2"))
	wantError(t, r, 1, "run_dir: locking", "give each agent of a host its own run_dir")
	// The first agent is not affected.
	h.open("alice")
	if n := len(h.running()["alice"]); n != 1 {
		t.Errorf("%d containers", n)
	}
}

func TestBadKeysAndCommands(t *testing.T) {
	h := newHost(t, "")
	h.start()
	for _, key := range []string{"Alice", "-a", strings.Repeat("a", 64), "a_b"} {
		if res, body := h.get("/s/" + key + "/"); res.StatusCode != 400 || !strings.Contains(body, "not a session key") {
			t.Errorf("%s: %s %s", key, res.Status, body)
		}
		if r := h.cli("session", "start", "--", key); r.code == 0 || !strings.Contains(r.err, "not a session key") || !strings.Contains(r.err, "hint: a key has") {
			t.Errorf("%s: %+v", key, r)
		}
	}
	wantError(t, h.cli("session", "start"), 2, "", "")
	wantError(t, h.cli("sesion", "ls"), 2, "", "")
	if n := len(h.containers()); n != 0 {
		t.Errorf("%d containers came of it", n)
	}
}

func TestNoAgent(t *testing.T) {
	h := newHost(t, "")
	for _, args := range [][]string{{"session", "ls"}, {"node", "ls"}, {"drain"}, {"agent", "stop"}} {
		wantError(t, h.cli(args...), 3, h.socket, "holdfast agent")
	}
}

func TestMissingImage(t *testing.T) {
	h := newHost(t, "\ntemplates: [{name: a, image: 'nowhere/nothing:1', port: 80}]")
	h.start()
	wantError(t, h.cli("session", "start", "alice"), 7, "nowhere/nothing:1", "docker pull nowhere/nothing:1")
}

// TestFullDisk fills the disk under the agent's data while sessions run.
func TestFullDisk(t *testing.T) {
	labtest.NeedLong(t, "waits for the timeouts of a store on a full disk")
	h := newHost(t, "")
	data := filepath.Join(h.dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", data, "tmpfs", 0, "size=256m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(data, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	h.start()
	h.open("alice")
	before := h.running()

	ballast := filepath.Join(data, "ballast")
	fill(t, ballast)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	refused := make(chan result, 1)
	go func() { refused <- h.cli("session", "start", "bob") }()
	select {
	case r := <-refused:
		if r.code == 0 || !strings.Contains(r.err, "error: ") || !strings.Contains(r.err, "hint: ") {
			t.Errorf("a session was claimed on a full disk: %+v", r)
		}
	case <-ctx.Done():
		t.Error("a request on a full disk gets no answer")
	}
	// Running sessions are still served.
	h.open("alice")

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "sessions start again", func() bool {
		select {
		case <-h.ended: // a store whose disk failed ends the agent; its supervisor starts another
			h.start()
		default:
		}
		return h.cli("session", "start", "bob").code == 0
	})
	if got := h.running()["alice"]; len(got) != 1 || got[0] != before["alice"][0] {
		t.Errorf("alice was %v, is %v", before["alice"], got)
	}
}

// fill writes until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size >= 4096; size /= 2 {
		block := make([]byte, size)
		for err = nil; err == nil; {
			_, err = f.Write(block)
		}
	}
}
