package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/rule"
)

// found is a finding of a rule about a container in a group.
func found(ruleName, container, group string) doctor.Finding {
	f := doctor.Finding{Finding: rule.Finding{Rule: ruleName, Title: "t"}}
	if group != "" {
		f.Subject = &doctor.Subject{Container: container, Cgroup: group}
	}
	return f
}

// slowing is a finding without a subject that slows groups.
func slowing(ruleName string, groups ...string) doctor.Finding {
	f := found(ruleName, "", "")
	for _, g := range groups {
		f.Against = append(f.Against, doctor.Subject{Cgroup: g})
	}
	return f
}

// listed is a finding of dying groups that blames no container.
func listed(what string) doctor.Finding {
	f := found(deadGroups, "", "")
	f.Evidence = []rule.Evidence{{What: what, Found: "1 MiB", Healthy: "0 B"}}
	return f
}

func TestJudge(t *testing.T) {
	const lab = "/holdfast-lab-1"
	ours := func(g string) bool { return within(g, lab) }
	storm := expected{rule: "fadvise-storm", group: lab + "/a", container: "a"}
	for _, c := range []struct {
		name                      string
		want                      expected
		steal, dead               float64
		found                     []doctor.Finding
		right                     bool
		own, others, machine, why string
	}{
		{name: "named", want: storm, found: []doctor.Finding{found("fadvise-storm", "a", lab+"/a")}, right: true},
		{name: "named twice", want: storm, found: []doctor.Finding{found("fadvise-storm", "a", lab+"/a"), found("throttling", "a", lab+"/a")}, right: true, own: "throttling"},
		{name: "nothing", want: storm, why: "not found"},
		{name: "the wrong one", want: storm, found: []doctor.Finding{found("fadvise-storm", "b", lab+"/b")}, others: "fadvise-storm", why: "another subject was named"},
		{name: "the group, but not the container", want: storm, found: []doctor.Finding{found("fadvise-storm", "", lab+"/a")}, others: "fadvise-storm", why: "another subject was named"},
		{name: "a group", want: expected{rule: "throttling", group: "/drill"}, found: []doctor.Finding{found("throttling", "", "/drill/worker")}, right: true},
		{name: "another group", want: expected{rule: "throttling", group: "/drill"}, found: []doctor.Finding{found("throttling", "", lab+"/x")}, others: "throttling", why: "another subject was named"},
		{name: "among the possible causes", want: expected{rule: deadGroups, group: "/drill"}, found: []doctor.Finding{listed("pages under /drill/churner, about")}, right: true},
		{name: "not among those", want: expected{rule: deadGroups, group: "/drill"}, found: []doctor.Finding{listed("pages under /other, about")}, others: deadGroups, why: "another subject was named"},
		{name: "a group that begins alike", want: expected{rule: "fadvise-storm", group: lab + "/a"}, found: []doctor.Finding{found("fadvise-storm", "", lab+"/ab")}, others: "fadvise-storm", why: "another subject was named"},
		{name: "an innocent one beside it", want: storm, found: []doctor.Finding{found("fadvise-storm", "a", lab+"/a"), found("own-limit", "b", lab+"/b")}, right: true, others: "own-limit"},
		{name: "another user of the machine", want: storm, found: []doctor.Finding{found("fadvise-storm", "a", lab+"/a"), found("slow-disk", "", "/else")}, right: true, machine: "slow-disk"},
		{name: "it slows another user of the machine", found: []doctor.Finding{slowing("frozen", "/holdfast-lab-2/b")}, machine: "frozen"},
		{name: "it slows one of ours as well", found: []doctor.Finding{slowing("frozen", "/holdfast-lab-2/b", lab+"/b")}, others: "frozen"},
		{name: "it slows a container whose group is not known", found: []doctor.Finding{slowing("frozen", "")}, others: "frozen"},
		{name: "healthy"},
		{name: "healthy, one of ours named", found: []doctor.Finding{found("noisy-neighbour", "c", lab+"/c")}, others: "noisy-neighbour"},
		{name: "healthy, no container named", found: []doctor.Finding{found("fragmentation", "", "")}, others: "fragmentation"},
		{name: "slow, without steal", found: []doctor.Finding{found("slow-machine", "", "")}, others: "slow-machine"},
		{name: "slow, with steal", steal: 0.3, found: []doctor.Finding{found("slow-machine", "", "")}, machine: "slow-machine"},
		{name: "dying groups that we may have left", want: expected{made: 3000}, dead: 4000, found: []doctor.Finding{listed("x")}, others: deadGroups},
		{name: "more dying groups than we have made", want: expected{made: 3000}, dead: 20_000, found: []doctor.Finding{listed("x")}, machine: deadGroups},
		{name: "healthy, one of ours named, with steal", steal: 0.3, found: []doctor.Finding{found("noisy-neighbour", "c", lab+"/c")}, machine: "noisy-neighbour"},
		{name: "a drill, with steal", steal: 0.3, want: storm, why: "not found", found: []doctor.Finding{found("noisy-neighbour", "d", lab+"/d")}, others: "noisy-neighbour"},
		{name: "steal is no excuse for others", steal: 0.3, found: []doctor.Finding{found("slow-disk", "", "")}, others: "slow-disk"},
	} {
		o := judge(c.want, look{report: doctor.Report{Findings: c.found, Facts: []fact.Fact{{Name: fact.MemcgDying, Value: c.dead}}}, steal: c.steal}, ours)
		if o.right != c.right || strings.Join(o.own, " ") != c.own || strings.Join(o.others, " ") != c.others || strings.Join(o.machine, " ") != c.machine || o.about != c.why {
			t.Errorf("%s: %+v", c.name, o)
		}
	}
	if o := judge(storm, look{report: doctor.Report{Findings: []doctor.Finding{found("fadvise-storm", "", "/else")}}}, ours); o.right || !o.outdone {
		t.Errorf("another container's storm: %+v", o)
	}
	blind := doctor.Report{Checked: []doctor.Check{{Rule: "fadvise-storm", Verdict: doctor.NotJudged, Why: "no BPF"}}}
	if o := judge(storm, look{report: blind}, ours); o.right || !strings.Contains(o.about, "no BPF") {
		t.Errorf("a rule that could not look: %+v", o)
	}
}

// sampleTable is a table of two drills and a healthy host.
func sampleTable() *AccuracyTable {
	fadvise, thrash := accuracyRow{name: "fadvise"}, accuracyRow{name: "thrash"}
	fadvise.drill.Rule, thrash.drill.Rule = "fadvise-storm", "own-limit"
	t := newAccuracyTable([]accuracyRow{fadvise, thrash, {name: hostIdle}}, AccuracyOptions{For: 30e9})
	t.Rows[0].add(outcome{right: true})
	t.Rows[0].add(outcome{right: true, own: []string{"slow-disk", "slow-disk"}})
	t.Rows[1].add(outcome{about: "not found", others: []string{"slow-disk"}, evidence: []string{"slow-disk: it is not"}})
	t.Rows[1].add(outcome{right: true})
	t.Rows[2].add(outcome{healthy: true, machine: []string{"slow-machine"}})
	t.Rows[2].add(outcome{healthy: true, others: []string{"softirq"}})
	return t
}

func TestAccuracyTable(t *testing.T) {
	table := sampleTable()
	// Missed once, an innocent container once, a healthy host once.
	if score, failed := table.sum(); score != 0.75 || failed != 3 {
		t.Errorf("score %v, failed %d", score, failed)
	}
	text := string(table.Markdown())
	for _, line := range []string{"| finding | fadvise | thrash | idle |\n", "| fadvise-storm | **2** |  |  |\n", "| own-limit |  | **1** |  |\n",
		"| slow-disk | 1° | 1 |  |\n", "| softirq |  |  | 1 |\n", "| slow-machine |  |  | 1\\* |\n", "| **right** | **2/2** | **1/2** | **1/2** |\n", "Runs of 30 s (the longest"} {
		if !strings.Contains(text, line) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
	var b strings.Builder
	if err := (Result{Name: "accuracy", Details: table, Scale: "a share"}).WriteText(&b); err != nil || !strings.Contains(b.String(), "1 of 2") || !strings.Contains(b.String(), "(a share)") {
		t.Errorf("%v\n%s", err, &b)
	}
}

// The page gets the table, keeps the rest, and a page without a place is refused
// and left alone.
func TestAccuracyPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	for _, was := range []string{"the last one\n", ""} {
		if err := os.WriteFile(path, []byte("before\n"+accuracyBegin+was+accuracyEnd+"after\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := sampleTable().WritePage(path); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		if !strings.HasPrefix(text, "before\n"+accuracyBegin) || !strings.HasSuffix(text, accuracyEnd+"after\n") || !strings.Contains(text, "| **right** |") || strings.Contains(text, "the last one") {
			t.Errorf("the page:\n%s", text)
		}
	}
	if err := os.WriteFile(path, []byte("no place\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := sampleTable().WritePage(path); err == nil {
		t.Error("a page without a place for it is taken")
	}
	if b, _ := os.ReadFile(path); string(b) != "no place\n" {
		t.Errorf("the page is now %q", b)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".accuracy-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAccuracyOptions(t *testing.T) {
	for _, o := range []AccuracyOptions{{}, {Runs: -1, For: 30e9}, {Runs: 1, For: 1}, {Runs: 1, For: 3600e9}, {Runs: 1, For: 30e9, Only: []string{"nope"}}} {
		if o.Check() == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	if err := (AccuracyOptions{Runs: 1, For: 30e9, Only: []string{"fadvise", hostBusy}}).Check(); err != nil {
		t.Error(err)
	}
}
