package hosts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/drill"
)

// diagnose runs the doctor for 12 s, and then a script.
func (h *host) diagnose(after string) (r doctor.Report) {
	h.Helper()
	// The exit code says that there are findings.
	out := h.run("holdfast doctor --for 12s --json 2>/dev/null || true; " + after)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		h.Fatalf("%v\n%s", err, out)
	}
	return r
}

// names makes the doctor examine a host with a container that its CPU limit throttles.
func names(h *host) {
	h.run(`docker run -d --name hog --cpus 0.05 holdfast-demo:latest sh -c 'while :; do :; done & while :; do :; done'`)
	// On a slow machine an engine may need more than its ten seconds to see a container's end.
	r := h.diagnose("until docker rm -f hog >/dev/null; do sleep 1; done")
	if !finds(r, "throttling", "hog") {
		h.Errorf("the findings are %+v", r.Findings)
	}
}

// sizes are those of drills that would take an emulated machine too long, and of a leak that
// grows in each third of 12 s by more than one huge page of 2 MiB. Emulated threads flush slowly,
// so that four make no storm beside the doctor. The groups are over 1 % of the
// machine's 2 GiB, at 47 KiB each.
var sizes = map[string]int{"zombies": 500, "pinned": 500, "dentries": 1_300_000, "leak": 2048, "fsync": 16}

// findsDrills runs each drill, in a container if it can.
func findsDrills(h *host) {
	var missed []string
	for _, d := range drill.All() {
		options := ""
		if d.Containers && d.Name != "neighbour" {
			options = " --image holdfast-demo:latest"
		}
		if size, ok := sizes[d.Name]; ok {
			options += fmt.Sprint(" --size ", size)
		}
		// The unit's output is opened after systemd-run has returned.
		said, err := h.Do(h.Context(), fmt.Sprintf(`rm -f /run/drill
systemd-run -q --unit drill --collect -p StandardError=truncate:/run/drill holdfast doctor drill %s --for 10m%s
until grep -qs "the pathology exists" /run/drill; do systemctl is-active -q drill || { cat /run/drill; exit 1; }; sleep 1; done
grep "the pathology exists" /run/drill`, d.Name, options))
		if err != nil {
			missed = append(missed, d.Name)
			h.Logf("%s does not come up: %v\n%s", d.Name, err, said)
			continue
		}
		r := h.diagnose("systemctl kill -s INT drill; while systemctl is-active -q drill; do sleep 1; done")
		_, by, _ := strings.Cut(strings.TrimSpace(said), ", by ")
		found := finds(r, d.Rule, by)
		if d.Name == "zombies" { // the drill's removed groups are not the only ones of a machine
			found = slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.Rule == d.Rule })
		}
		if !found {
			missed = append(missed, d.Name)
			h.Logf("%s by %q: the findings are %+v", d.Name, by, r.Findings)
		}
	}
	if len(missed) > 0 {
		h.Errorf("of %d drills the doctor missed %s", len(drill.All()), strings.Join(missed, ", "))
	}
}

// finds reports whether a report has a finding of a rule that names a container or control group.
func finds(r doctor.Report, rule, by string) bool {
	return slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
		return f.Rule == rule && f.Subject != nil && by != "" &&
			(f.Subject.Container == by || f.Subject.Cgroup == by || strings.HasPrefix(f.Subject.Cgroup, by+"/"))
	})
}
