package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"holdfast"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// replacement returns the group's replacement as the agent's API has it.
func (h *host) replacement(group string) *holdfast.GroupReplacement {
	h.t.Helper()
	body := h.apiGet("/v1/groups")
	if body == "" {
		return nil // the agent does not run at the moment
	}
	var all struct{ Groups []holdfast.Group }
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		h.t.Fatal(err)
	}
	for _, one := range all.Groups {
		if one.Name == group {
			return one.Replacing
		}
	}
	return nil
}

// in waits until the replacement is in a phase.
func (h *host) in(group string, phase holdfast.ReplacePhase) {
	h.t.Helper()
	poll.Until(h.t, fmt.Sprintf("the replacement is %s", phase), func() bool {
		r := h.replacement(group)
		return r.Active() && r.Phase == phase
	})
}

// replaced waits for the end of a group's replacement and returns its report.
func (h *host) replaced(group string) holdfast.ReplaceReport {
	h.t.Helper()
	var r *holdfast.GroupReplacement
	poll.Until(h.t, "the replacement has ended", func() bool {
		r = h.replacement(group)
		return r != nil && !r.Active()
	})
	return r.Report
}

// phases are the phases in which a replacement waits, each with the gate that it waits for.
// joining lasts for the time of a write.
func phases(old, key string) map[holdfast.ReplacePhase]string {
	return map[holdfast.ReplacePhase]string{
		holdfast.ReplaceStarting: "init-" + key, holdfast.ReplaceCatchingUp: "caught-up-" + key,
		holdfast.ReplaceDraining: "", holdfast.ReplaceStopping: "snap-" + old,
	}
}

// An agent that is killed in any phase of a replacement leaves it to the next agent, which
// completes it: no replica is lost, none is there twice.
func TestGroupSurvivesItsAgent(t *testing.T) {
	labtest.NeedLong(t, "an agent is killed and started again in each phase of a replacement")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	g := newGates(t, "init-store-0", "caught-up-store-0", "snap-store-0", "init-store-1", "caught-up-store-1", "snap-store-1")
	h := newHost(t, "\ntemplates:"+template+g.template("store", 1, fmt.Sprintf(caughtUp, "5m")+fmt.Sprintf(`
    init_steps: [{name: wait, command: [/busybox, sh, -c, "until test -e /gates/init-{key}; do sleep 0.1; done"]}]
    snapshot: {command: [%s, sh, -c, "until test -e %s/snap-{key}; do sleep 0.1; done"], timeout: 2m}
`, busybox, g.dir)))
	h.start()
	h.serving("store", "store-0")
	old, key := "store-0", "store-1"
	for _, phase := range []holdfast.ReplacePhase{holdfast.ReplaceStarting, holdfast.ReplaceCatchingUp, holdfast.ReplaceDraining, holdfast.ReplaceStopping} {
		gate := phases(old, key)[phase]
		if gate != "" {
			g.shut(gate)
		}
		var release func()
		if phase == holdfast.ReplaceDraining {
			release = h.hold(old)
		}
		wait := h.replacing("store")
		h.in("store", phase)
		h.kill()
		if r := wait(); r.code == 0 {
			t.Errorf("%s: the command did not notice the agent's end: %+v", phase, r)
		}
		if release != nil {
			release()
		}
		h.start()
		h.open("store") // by the old replica, or the new one
		if gate != "" {
			h.in("store", phase)
			g.open(gate)
		}
		report := h.replaced("store")
		if len(report.Rows) != 1 || report.Failed() != 0 || string(report.Rows[0].Key) != key || string(report.Rows[0].Replica.Old) != old {
			t.Errorf("%s: %+v", phase, report)
		}
		h.serving("store", key)
		if keys := h.settled(); !slices.Equal(keys, []string{key}) {
			t.Errorf("%s: %v run at the end", phase, keys)
		}
		old, key = key, old
	}
}

// hold opens a connection to a replica that stays until release.
func (h *host) hold(key string) (release func()) {
	h.t.Helper()
	res, err := http.Get("http://" + h.gateway + "/s/" + key + "/stream?n=100000&every=100ms")
	if err != nil {
		h.t.Fatal(err)
	}
	return func() { res.Body.Close() }
}

// apiGet returns the answer of the agent's API, "" if the agent does not answer.
func (h *host) apiGet(path string) string {
	res, err := http.Get("http://" + h.apiTCP + path)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// In a fleet the agent that keeps the group is killed while a new replica catches up.
// Another node's agent goes on. Clients at another node see no error in the replacement
// before that, nor after it.
func TestGroupInAFleet(t *testing.T) {
	labtest.NeedLong(t, "three agents and an etcd, and the end of a lease")
	g := newGates(t)
	hosts := newFleet(t, 3, quick, "\ntemplates:"+template+g.template("store", 2, fmt.Sprintf(caughtUp, "2m")))
	g.open("caught-up-store-0", "caught-up-store-1", "caught-up-store-2")
	hosts[0].serving("store", "store-0", "store-1")
	clients := read("store", hosts...)
	report := reportOf(t, hosts[1].replacing("store")())
	if len(report.Rows) != 2 || report.Failed() != 0 {
		t.Errorf("%+v", report)
	}
	hosts[2].serving("store", "store-0", "store-2")
	clients.stop(t)

	g.shut("caught-up-store-1")
	keeper := hosts[slices.IndexFunc(hosts, func(h *host) bool { return strings.Contains(h.apiGet("/metrics"), "holdfast_group_replicas{") })]
	others := besides(hosts, keeper)
	wait := others[0].replacing("store")
	others[0].in("store", holdfast.ReplaceCatchingUp)
	keeper.kill()
	g.open("caught-up-store-1")
	report = reportOf(t, wait())
	if len(report.Rows) == 0 || report.Failed() > 1 { // the new replica may have been on the host of the killed agent
		t.Errorf("%+v", report)
	}
	poll.Until(t, "two replicas serve", func() bool {
		n := 0
		for _, state := range others[1].rotation("store") {
			if state != holdfast.ReplicaServing {
				return false
			}
			n++
		}
		return n == 2
	})
	clients = read("store", others...)
	clients.answer(t, 50, slices.Collect(maps.Keys(others[1].rotation("store")))...)
	clients.stop(t)
	for key := range others[0].rotation("store") {
		if ids := living(hosts, key); len(ids) != 1 {
			t.Errorf("%s runs %d times", key, len(ids))
		}
	}
}
