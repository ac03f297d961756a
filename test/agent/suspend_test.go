package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/sessions/move"
	"holdfast/test/lab/echoserver"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// suspended returns the host's image of a suspended session, or "" if there is none.
func (h *host) suspended(key string) string {
	h.t.Helper()
	names, err := filepath.Glob(filepath.Join(h.dir, "data", "suspended", key+"@*"))
	if err != nil || len(names) > 1 {
		h.t.Fatalf("%v, %v", names, err)
	}
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// resuming reports whether the session is being resumed, and its image is not taken yet.
func (h *host) resuming(key string) bool {
	h.t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, "data", "resuming", key+"@*"))
	if err != nil {
		h.t.Fatal(err)
	}
	return len(files) > 0
}

// pause sends SIGSTOP or SIGCONT to the engine.
func (m *mover) pause(s syscall.Signal) {
	m.t.Helper()
	if err := syscall.Kill(m.engine.Pid(), s); err != nil {
		m.t.Fatal(err)
	}
}

func (h *host) show(key string) string {
	h.t.Helper()
	return h.must("session", "show", key)
}

// goesOn checks that the same process answers in a newer epoch.
func (h *host) goesOn(first echoserver.Reply) {
	h.t.Helper()
	again := h.ask("a")
	if out := h.show("a"); again.Epoch != first.Epoch || !strings.Contains(out, "with its memory") {
		h.t.Errorf("the process of epoch %s became one of %s:\n%s", first.Epoch, again.Epoch, out)
	}
}

// A suspended session is on no host. The next connect restores its memory, or boots it fresh
// with a reason in the log.
func TestSuspend(t *testing.T) {
	m := newMover(t)
	h := newHostOn(t, m.engine.Host(), m.config("", `  - name: plain
    image: `+labtest.TestServer+`
    port: 8080
    ready: {http: /healthz, timeout: 2m}
`))
	h.start()
	first := h.ask("a")
	suspend := func() {
		t.Helper()
		init := h.inits()["a"]
		if out := h.must("session", "suspend", "a"); !strings.Contains(out, "a is suspended: ") {
			t.Errorf("the command printed %q", out)
		}
		if alive(init) {
			t.Error("its init is alive")
		}
		if out := h.must("session", "ls"); !strings.Contains(out, "suspended") {
			t.Errorf("the list:\n%s", out)
		}
	}
	suspend()
	path := h.suspended("a")
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("%q: %v, %v", path, fi, err)
	}
	if sealed, err := os.ReadFile(path); err != nil || !bytes.HasPrefix(sealed, []byte("age-encryption.org/v1\n")) || bytes.Contains(sealed, []byte("HOLDFAST_SESSION")) {
		t.Errorf("the image is not encrypted: %v", err)
	}
	if key, err := os.Stat(filepath.Join(h.dir, "data", "images.key")); err != nil || key.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", key, err)
	}
	if h.metric("holdfast_suspended_images") != "1" {
		t.Error("no image is counted")
	}
	h.goesOn(first)
	if left := h.suspended("a"); left != "" {
		t.Errorf("%s is left", left)
	}

	// A suspended session outlives its agent. A command also resumes it.
	suspend()
	h.signal(syscall.SIGKILL)
	h.wait()
	h.start()
	if out := h.must("session", "resume", "a"); !strings.Contains(out, "with its memory") {
		t.Errorf("the command printed %q", out)
	}
	h.goesOn(first)

	// An agent that is killed while it resumes the session, before it has taken the image, loses
	// nothing. The engine does not answer meanwhile.
	suspend()
	m.pause(syscall.SIGSTOP)
	go h.cli("session", "resume", "a")
	poll.Until(t, "the session is claimed", func() bool { return h.resuming("a") })
	h.signal(syscall.SIGKILL)
	h.wait()
	m.pause(syscall.SIGCONT)
	h.start()
	if out := h.must("session", "ls"); !strings.Contains(out, "suspended") {
		t.Errorf("the list:\n%s", out)
	}
	h.goesOn(first)
	if h.resuming("a") {
		t.Error("its suspend note is left")
	}

	// With a truncated image it boots fresh, with a message.
	suspend()
	if err := os.Truncate(h.suspended("a"), 5000); err != nil {
		t.Fatal(err)
	}
	if again := h.ask("a"); again.Epoch == first.Epoch || !strings.Contains(h.show("a"), "its memory is lost: ") {
		t.Errorf("epoch %s became %s:\n%s", first.Epoch, again.Epoch, h.show("a"))
	}

	// A stop removes a suspended session.
	suspend()
	h.must("session", "stop", "a")
	if left := h.suspended("a"); left != "" {
		t.Errorf("%s is left", left)
	}
	if r := h.cli("session", "resume", "a"); r.code != 5 {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	if h.metric(`holdfast_suspended_dropped_total{reason="stopped"}`) != "1" {
		t.Error("its image is not counted")
	}

	// A session that cannot be suspended continues.
	h.must("session", "start", "b", "--template", "plain")
	wantError(t, h.cli("session", "suspend", "b"), 1, "template plain does not say handover: memory", "docs/moving.md")
	if h.inits()["b"] == 0 {
		t.Error("the session has ended")
	}
	wantError(t, h.cli("session", "suspend", "unknown"), 5, "session unknown", "session ls")
	m.expectNothingLeft()
}

// An idle session is suspended, and the next connect restores it; its template is not the
// default one.
func TestIdleIsSuspended(t *testing.T) {
	labtest.NeedLong(t, "TestSuspend suspends by hand, the unit tests of package session when idle")
	m := newMover(t)
	config := strings.Replace(m.config("", ""), "templates:", `sessions: {idle_stop: 4s}
templates:
  - name: first
    image: `+labtest.TestServer+`
    port: 8080`, 1)
	h := newHostOn(t, m.engine.Host(), config+"    idle: suspend\n")
	h.start()
	h.must("session", "start", "a", "--template", "web")
	first := h.ask("a")
	for range labtest.Count(1, 2) {
		poll.Until(t, "the session is suspended", func() bool {
			return h.suspended("a") != "" && len(h.sessions()) == 1 && h.sessions()[0].State == "suspended"
		})
		h.goesOn(first)
	}
	if _, s := owner(t, []*host{h}, "a"); s.Template != "web" {
		t.Errorf("its template is %s", s.Template)
	}
}

// A suspended session resumes on another node, which fetches the image from its node or from
// a shared directory.
func TestSuspendedGoesOnElsewhere(t *testing.T) {
	labtest.NeedLong(t, "TestSuspend resumes a session where it was, TestMove fetches an image from another node")
	m := newMover(t)
	shared := t.TempDir()
	key := filepath.Join(shared, "key")
	text, err := move.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, []byte("# as age-keygen writes it\n"+text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	far := filepath.Join(shared, "far")
	if err := os.Mkdir(far, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		suspended string
		alone     bool // the node with the image is gone
		fresh     bool
		long      bool
	}{
		"fetched": {"", false, false, true},
		"gone":    {"", true, true, false},
		"shared":  {", suspended: {shared: true, dir: " + filepath.Join(shared, "dir") + ", key_file: " + key + "}", true, false, true},
		"commands": {", suspended: {key_file: " + key + `, put: [/bin/cp, "{file}", "` + far + `/{name}"], get: [/bin/cp, "` + far + `/{name}", "{file}"], ` +
			`drop: [/bin/rm, "` + far + `/{name}"]}`, true, false, false},
	} {
		if c.long && !labtest.Long() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			had, other, first := m.fleet(t, c.suspended, "")
			had.must("session", "suspend", "a")
			if c.alone {
				had.must("agent", "stop")
				had.wait()
			} else {
				had.must("node", "cordon")
			}
			switch again := other.ask("a"); {
			case c.fresh:
				if again.Epoch == first.Epoch || !strings.Contains(other.show("a"), "its memory is lost: ") {
					t.Errorf("epoch %s became %s:\n%s", first.Epoch, again.Epoch, other.show("a"))
				}
			default:
				other.goesOn(first)
			}
			if left, err := os.ReadDir(far); err != nil || len(left) != 0 {
				t.Errorf("%v are left, %v", left, err)
			}
		})
	}
}
