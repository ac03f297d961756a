package agent

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/experiment"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

const experiments = `experiments:
  - {name: next, template: web, with: web-next, share: 50}
  - {name: store, by: node, share: 100}
templates:` + template + `
  - name: web-next
    image: busybox:latest
    command: [/bin/sh, -c, "exit 3"]
    port: 8080
`

// report returns an experiment as `experiment show` prints it.
func (h *host) report(name string) experiment.Report {
	h.t.Helper()
	var r experiment.Report
	if err := json.Unmarshal([]byte(h.must("experiment", "show", name, "--json")), &r); err != nil {
		h.t.Fatal(err)
	}
	return r
}

// A part of the sessions boots from another template. Once an operator stops the experiment,
// all boot from the first one.
func TestExperiment(t *testing.T) {
	h := newHost(t, experiments)
	h.start()
	poll.Until(t, "the experiment runs", func() bool { return h.report("next").State == holdfast.ExperimentRunning })
	treated, untreated := h.keysOf(holdfast.Treatment), h.keysOf(holdfast.Control)
	if r := h.cli("session", "start", treated[0]); r.code == 0 || !strings.Contains(r.err, "exit code 3") {
		t.Errorf("exit code %d\n%s", r.code, r.err)
	}
	h.open(untreated[0])
	poll.Until(t, "both arms are recorded", func() bool {
		v := h.report("next").Verdicts[0]
		return v.Measure == experiment.Failed && v.Treatment.Hits == 1 && v.Control.Count > 0 && v.Control.Hits == 0
	})
	if r := h.report("store"); r.NodeArm != holdfast.Treatment || len(r.Fleet.Groups) != 1 || r.Fleet.Groups[0].Name != string(holdfast.Treatment) {
		t.Errorf("%+v", r)
	}
	if out := h.must("spinup", "stats", "--by", "arm", "--experiment", "next"); !strings.Contains(out, "treatment") || !strings.Contains(out, "control") {
		t.Errorf("%s", out)
	}
	h.must("experiment", "stop", "next", "--why", "it fails")
	if out := h.must("experiment", "ls"); !strings.Contains(out, "stopped") || !strings.Contains(out, "it fails") {
		t.Errorf("%s", out)
	}
	h.must("session", "start", treated[1])
	wantError(t, h.cli("experiment", "show", "none"), 5, "none", "experiment ls")
	wantError(t, h.cli("experiment", "arm", "next", "--config", h.configFile()), 1, "by session", "--key")
}

// An experiment compares two storage drivers, on nodes that are set up by their arm.
func TestExperimentOfStorage(t *testing.T) {
	labtest.NeedLong(t, "it starts two engines and a fleet of four; TestExperiment has an experiment by node, and TestFileSystems the driver")
	const nodes = 4
	id := func(i int) string { return "node-" + strings.ToLower(t.Name()) + "-" + strconv.Itoa(i) }
	spec := experiment.Spec{By: experiment.ByNode, Share: 50}
	arm := func(i int) holdfast.Arm { return spec.Arm(id(i)) }
	treated := 0
	for try := 0; treated != nodes/2; try++ { // an experiment that divides these nodes evenly
		spec.Name, treated = fmt.Sprint("storage-", try), 0
		for i := range nodes {
			if arm(i) == holdfast.Treatment {
				treated++
			}
		}
	}
	drivers := map[holdfast.Arm]string{holdfast.Control: "overlay2", holdfast.Treatment: "fuse-overlayfs"}
	engines := map[holdfast.Arm]*lab.Engine{}
	for a, driver := range drivers {
		engines[a] = labtest.Private(t, lab.Options{Args: []string{"--storage-driver=" + driver}})
	}
	config := fmt.Sprintf("experiments: [{name: %s, by: node, share: 50}]\n", spec.Name)
	hosts := newFleetWith(t, func(i int) string { return engines[arm(i)].Host() }, nil, nodes, patient, func(int) string { return config }, (*host).start)
	h := hosts[0]
	poll.Until(t, "the experiment runs", func() bool { return h.report(spec.Name).State == holdfast.ExperimentRunning })
	counts := func() map[string]int {
		all := map[string]int{}
		for _, g := range h.report(spec.Name).Fleet.Groups {
			all[g.Name] = g.Count
		}
		return all
	}
	for n := 0; counts()[string(holdfast.Treatment)] < 40 || counts()[string(holdfast.Control)] < 40; n++ {
		hosts[n%nodes].open(fmt.Sprint("s", n))
	}
	poll.Until(t, "each arm has the records of one driver", func() bool {
		var byDriver spinup.FleetReport
		if err := json.Unmarshal([]byte(h.must("spinup", "stats", "--fleet", "--by", "driver", "--experiment", spec.Name, "--json")), &byDriver); err != nil {
			t.Fatal(err)
		}
		byArm := counts()
		for _, g := range byDriver.Groups {
			for a, driver := range drivers {
				if g.Name == driver && g.Count != byArm[string(a)] {
					return false
				}
			}
		}
		return len(byDriver.Groups) == 2
	})
	t.Log(h.must("experiment", "show", spec.Name))
}

// keysOf returns two keys of an arm.
func (h *host) keysOf(arm holdfast.Arm) (keys []string) {
	h.t.Helper()
	for i := 0; len(keys) < 2; i++ {
		key := fmt.Sprint("k", i)
		if out := h.must("experiment", "arm", "next", "--config", h.configFile(), "--key", key); strings.TrimSpace(out) == string(arm) {
			keys = append(keys, key)
		}
	}
	return keys
}
