package bench

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
)

// The project's own faults are valid, a third of them is held out, and each can be compiled.
func TestFaults(t *testing.T) {
	faults, err := LoadFaults("faults")
	if err != nil {
		t.Fatal(err)
	}
	held, wrong := 0, 0
	for _, f := range faults {
		if len(f.Truth) > 0 {
			wrong++
		}
		if f.HeldOut {
			held++
		}
	}
	if wrong < 40 || held < wrong/3 {
		t.Errorf("%d faults, of which %d are held out", wrong, held)
	}
}

// A manifest that cannot be right is refused, with the reason.
func TestBadFaults(t *testing.T) {
	const shape = "containers: {x: {program: p.sh}}\n"
	for name, c := range map[string]struct{ text, says string }{
		"no-about":   {shape, "about"},
		"nothing":    {"about: a\n", "starts nothing"},
		"unknown":    {"about: a\nculprit: x\n" + shape, "culprit"},
		"no-culprit": {"about: a\ntruth: [{culprit: y, cause: [c]}]\n" + shape, `culprit "y"`},
		"no-cause":   {"about: a\ntruth: [{culprit: x}]\n" + shape, "cause"},
		"no-host":    {"about: a\ntruth: [{culprit: host, cause: [c]}]\n" + shape, `culprit "host"`},
		"outside":    {"about: a\ncontainers: {x: {program: ../p.sh}}\n", "beside the manifest"},
		"binary":     {"about: a\ncontainers: {x: {program: p}}\n", "beside the manifest"},
		"gone":       {"about: a\ncontainers: {x: {program: q.sh}}\n", "q.sh"},
		"much":       {"about: a\ncontainers: {x: {program: p.sh, memory: 9}}\n", "memory is a number"},
		"copies":     {"about: a\ncontainers: {x: {program: p.sh, copies: 5000}}\n", "copies"},
		"long":       {"about: a\nlimit: 6000\n" + shape, "limit"},
		"distractor": {"about: a\ndistractor: true\ntruth: [{culprit: x, cause: [c]}]\n" + shape, "no truth"},
		"Bad_Name":   {"about: a\n" + shape, "lower-case"},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"p.sh": "", "p": "", name + ".yaml": c.text} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := LoadFaults(dir); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %q", name, err, c.says)
		}
	}
	if _, err := LoadFaults(t.TempDir()); err == nil {
		t.Error("a directory without a manifest is accepted")
	}
	dir := t.TempDir()
	for file, text := range map[string]string{"p.sh": "", "fault.yaml": "about: a\n" + shape, "work.yaml": "about: b\ndistractor: true\n" + shape} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := LoadFaults(dir); err == nil || !strings.Contains(err.Error(), "both have a container x") {
		t.Errorf("a name that a distractor has too: error %v", err)
	}
}

// Without a healthy host in the directory, looks at healthy hosts would never begin.
func TestHealthyLooksNeedAHost(t *testing.T) {
	fault, beside, healthy := Fault{Name: "a", Truth: []Truth{{}}}, Fault{Name: "b", Distractor: true}, Fault{Name: "c"}
	for _, c := range []struct {
		looks  int
		faults []Fault
		ok     bool
	}{{0, []Fault{fault}, true}, {1, []Fault{fault, beside}, false}, {1, []Fault{fault, healthy}, true}} {
		if err := (ExamOptions{Healthy: c.looks}).enough(c.faults); (err == nil) != c.ok {
			t.Errorf("%d looks with %+v: %v", c.looks, c.faults, err)
		}
	}
}

func TestJudgeFault(t *testing.T) {
	const lab = "/lab"
	s := &faultStage{group: lab + "/fault-x", names: map[string]map[string]bool{"a": {"a-0": true, "a-1": true}}}
	w := suspect{stage: s, lab: lab}
	notice := found("throttling", "b", lab+"/b")
	notice.Severity = rule.Notice
	for _, c := range []struct {
		name, culprit    string
		found            []doctor.Finding
		container, named bool
		wrong            int
	}{
		{"nothing", "a", nil, false, false, 0},
		{"named", "a", []doctor.Finding{found("slow-disk", "a-1", lab+"/1")}, true, true, 0},
		{"the container, another cause", "a", []doctor.Finding{found("throttling", "a-1", lab+"/1")}, true, false, 0},
		{"an innocent container", "a", []doctor.Finding{found("slow-disk", "b", lab+"/b")}, false, false, 1},
		{"an innocent container, a notice", "a", []doctor.Finding{notice}, false, false, 0},
		{"the cause alone", "a", []doctor.Finding{found("slow-disk", "", "")}, false, false, 0},
		{"another user of the machine", "a", []doctor.Finding{found("slow-disk", "", "/else")}, false, false, 0},
		{"a process on the host", culpritHost, []doctor.Finding{found("slow-disk", "", lab+"/fault-x/y")}, true, true, 0},
		{"no culprit", culpritNone, []doctor.Finding{found("slow-disk", "", "")}, true, true, 0},
		{"no culprit, but one is accused", culpritNone, []doctor.Finding{found("slow-disk", "b", lab+"/b")}, false, false, 1},
	} {
		v := []ExamVerdict{{Truth: Truth{Culprit: c.culprit, Cause: []string{"slow-disk"}}}}
		wrong := judgeFault(v, look{report: doctor.Report{Findings: c.found}}, w, 7)
		if v[0].Container != c.container || v[0].Named != c.named || len(wrong) != c.wrong || c.named != (v[0].Seconds == 7) {
			t.Errorf("%s: %+v, %d wrong", c.name, v[0], len(wrong))
		}
	}
}

func TestJudgePeer(t *testing.T) {
	s := &faultStage{
		fault: Fault{Truth: []Truth{{Culprit: "a"}}}, group: "/lab/fault-x",
		names: map[string]map[string]bool{"a": {"oom": true}, "b": {"b": true}}, ids: map[string]string{"oom": "0123456789abcdef", "b": "fedcba9876543210"},
	}
	for line, named := range map[string]bool{
		"oom: CPU":                     true,
		"Killed process, oom_score: 0": false, // part of another word
		"cgroup_lab_0123456789abcdef":  true,
		"cgroup_lab_fedcba9876543210":  false,
		"fault-x":                      false,
	} {
		if v := judgePeer([]string{"load", line}, s); v.Alarms != 2 || v.Container != named {
			t.Errorf("%s: %+v", line, v)
		}
	}
	s.fault.Truth[0].Culprit = culpritHost
	if v := judgePeer([]string{"cgroup_lab_fault-x.cpu"}, s); !v.Container {
		t.Errorf("%+v", v)
	}
	if v := judgePeer(nil, s); v.Alarms != 0 || v.Container {
		t.Errorf("%+v", v)
	}
}

func TestExamTable(t *testing.T) {
	table := &ExamTable{Rows: []ExamRow{
		{Fault: "one", Verdicts: []ExamVerdict{{Truth: Truth{"a", []string{"slow-disk"}}, Container: true, Named: true, Known: true, Seconds: 12}}},
		{Fault: "two", Verdicts: []ExamVerdict{{Truth: Truth{"a", []string{"dns-timeouts"}}, Container: true}}},
		{Fault: "three", Skipped: "this host has no cc"},
	}, Healthy: ExamHealthy{ByRule: map[string]int{}}}
	table.Healthy.Looks = 2
	table.Healthy.add([]doctor.Finding{found("softirq", "", "")}, "healthy")
	if score, failed := table.sum(); score != 0.5 || failed != 2 {
		t.Errorf("score %v, failed %d", score, failed)
	}
	var b strings.Builder
	if err := table.WriteTable(&b); err != nil || !strings.Contains(b.String(), "dns-timeouts (not a check)") || !strings.Contains(b.String(), "2 looks, 1 with a false finding (softirq 1)") {
		t.Errorf("%v\n%s", err, &b)
	}
}

// A miss says what the doctor could not observe.
func TestExamUnseen(t *testing.T) {
	row := ExamRow{
		Fault: "one", Verdicts: []ExamVerdict{{Truth: Truth{"a", []string{"slow-disk"}}}}, Said: []string{"notice other"},
		Unseen: tellGaps([]fact.Gap{{Probe: "disks", Why: "it did not answer"}}),
	}
	if got := row.line(); !strings.Contains(got, "\n    notice other\n    not seen by probe disks: it did not answer") {
		t.Errorf("of a miss: %s", got)
	}
	row.Verdicts[0].Named = true
	if got := row.line(); strings.Contains(got, "disks") {
		t.Errorf("of a fault that was named: %s", got)
	}
}

// Only the end of a fault's own time is the fault's.
func TestLate(t *testing.T) {
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	over := engine.Unanswered(ended, "start container x")
	if !late(t.Context(), over) || late(ended, over) || late(t.Context(), nil) || late(t.Context(), os.ErrNotExist) {
		t.Error("the examination's own end, or another error, counts as the end of a fault's time")
	}
}
