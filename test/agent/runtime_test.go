package agent

import (
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
