package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// A session in a gVisor sandbox boots, is served and ends like others. An agent refuses only
// the templates whose runtime is missing.
func TestRuntimes(t *testing.T) {
	private := labtest.Private(t, lab.Options{Args: labtest.RunscArgs(t)})
	h := newHostOn(t, private.Host(), "templates:"+template+
		strings.Replace(template, "name: web", "name: sandbox\n    network: pooled\n    runtime: "+labtest.RunscRuntime, 1)+
		strings.Replace(template, "name: web", "name: lacking\n    runtime: kata", 1))
	h.start()
	poll.Until(t, "both runtimes were tried", func() bool {
		return h.metric(`holdfast_runtime_works{runtime="runsc"}`) == "1" && h.metric(`holdfast_runtime_works{runtime="kata"}`) == "0"
	})
	h.must("session", "start", "plain", "--template", "web")
	h.must("session", "start", "boxed", "--template", "sandbox")
	r := h.cli("session", "start", "none", "--template", "lacking")
	if r.code == 0 || !strings.Contains(r.err, "kata") || !strings.Contains(r.err, "hint:") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	if reply := h.ask("boxed"); reply.Session != "boxed" {
		t.Errorf("%+v", reply)
	}
	if at := h.inspect("boxed").Addresses; len(at) != 1 || !strings.HasPrefix(at[0], "10.172.") {
		t.Errorf("the sandbox has %v: no network of Holdfast's", at)
	}
	boxedFiles(t, h)
	inits := h.inits()
	h.must("session", "stop", "boxed")
	if alive(inits["boxed"]) {
		t.Error("the sandbox outlives its session")
	}
	h.must("session", "start", "boxed", "--template", "sandbox")
	inits = h.inits()
	h.must("node", "drain")
	for key, pid := range inits {
		if alive(pid) {
			t.Errorf("%s outlives the drain", key)
		}
	}
}

// boxedFiles reads, changes and watches files under gVisor. The image has no program for it.
func boxedFiles(t *testing.T, h *host) {
	t.Helper()
	text := bytes.Repeat([]byte("0123456789abcdef"), 256<<10)
	from := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(from, text, 0o640); err != nil {
		t.Fatal(err)
	}
	h.must("session", "files", "mkdir", "boxed:/data/in", "-p")
	h.must("session", "cp", from, "boxed:/data/in/big")
	h.must("session", "files", "mv", "boxed:/data/in/big", "/data/in/moved")
	out := h.must("session", "files", "ls", "boxed:/data/in")
	if !strings.Contains(out, "moved") || !strings.Contains(out, strconv.Itoa(len(text))) {
		t.Errorf("the list is %q", out)
	}
	to := filepath.Join(t.TempDir(), "back")
	h.must("session", "cp", "boxed:/data", to)
	if got, err := os.ReadFile(filepath.Join(to, "in", "moved")); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	if got := h.must("session", "files", "cat", "boxed:/data/in/moved", "--offset", strconv.Itoa(len(text)-3)); got != "def" {
		t.Errorf("the end of the file is %q", got)
	}
	h.must("session", "files", "rm", "boxed:/data", "-r")
	if r := h.cli("session", "files", "stat", "boxed:/data"); r.code == 0 || !strings.Contains(r.err, "there is no such file") || !strings.Contains(r.err, "hint:") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
}
