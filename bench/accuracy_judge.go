package bench

import (
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/rule"
)

// expected is the finding that the doctor must report for a host.
type expected struct {
	rule      string // "" on a healthy host, where no finding is expected
	group     string // the culprit's control group
	container string // the culprit's container, "" for a control group without one
	made      int    // memory cgroups made and removed by the bench so far
}

// is reports whether a finding matches the expected one.
func (want expected) is(f doctor.Finding) bool {
	switch {
	case want.rule == "":
		return false
	case f.Subject != nil && want.container != "":
		return f.Subject.Container == want.container // not every engine reports the container's group
	case f.Subject != nil:
		return within(f.Subject.Cgroup, want.group)
	}
	// If the kernel does not tell which group the dead cgroups belong to, the finding
	// lists the candidates and has no subject.
	return want.rule == deadGroups && slices.ContainsFunc(f.Evidence, func(e rule.Evidence) bool { return strings.Contains(e.What, " "+want.group) })
}

// deadGroups is the only rule whose finding may list several candidates.
const deadGroups = "dying-cgroups"

// outcome is the result of one doctor run.
type outcome struct {
	healthy bool // no finding was expected
	// right: the doctor named the drill and its container or group.
	right bool
	// about is the reason if the drill was not named.
	about string
	// outdone: the drill was not named because another workload on this machine does the same.
	outdone bool
	// own has the other findings, by rule, about the drill's own container or group.
	// others has the findings with another subject or none. machine has the findings
	// that are true of the machine itself and were not caused by the bench.
	own, others, machine []string
	evidence             []string // of the findings in others and machine, for the notes
	unseen               []string // rules that the doctor could not judge
}

func (o outcome) String() string {
	var s []string
	switch {
	case o.right:
		s = append(s, "named right")
	case !o.healthy:
		s = append(s, "MISSED: "+o.about)
	case len(o.others) == 0:
		s = append(s, "nothing found")
	}
	for what, rules := range map[string][]string{"also of it": o.own, "FOUND": o.others, "of the machine": o.machine} {
		if len(rules) > 0 {
			s = append(s, what+": "+strings.Join(rules, ", "))
		}
	}
	return strings.Join(append(s, o.evidence...), "; ")
}

// stolen is the share of stolen CPU time from which on the hypervisor slows the
// machine down, whatever runs on it.
const stolen = 0.10

// manyDead is the number of dying groups from which on the doctor reports them.
const manyDead = 2000

// judge compares a report with the expected finding. ours reports whether the bench
// made a control group; all other groups belong to other workloads on the machine.
//
// A finding is true of the machine in five cases: it names a group that is not ours; it
// has no subject and slows only groups that are not ours; it reports stolen CPU time that this program has measured, too; it reports that
// healthy containers wait for CPUs from which the hypervisor stole that much time; or
// it has no subject and counts more dying groups than this program can have left.
func judge(want expected, l look, ours func(group string) bool) outcome {
	o := outcome{healthy: want.rule == ""}
	for _, c := range l.report.Checked {
		if c.Verdict != doctor.NotJudged {
			continue
		}
		if c.Rule == want.rule {
			o.about = "not judged: " + c.Why
		}
		o.unseen = append(o.unseen, c.Rule)
	}
	for _, f := range l.report.Findings {
		group := ""
		if f.Subject != nil {
			group = f.Subject.Cgroup
		}
		of := want.is(f)
		switch {
		case of && f.Rule == want.rule:
			o.right = true
			continue
		case of:
			o.own = append(o.own, f.Rule)
			continue
		case group != "" && !ours(group),
			f.Subject == nil && onlyOthers(f.Against, ours),
			(f.Rule == "slow-machine" || o.healthy && f.Rule == "noisy-neighbour") && l.steal > stolen,
			f.Rule == deadGroups && group == "" && l.dead() > manyDead+float64(want.made):
			o.machine = append(o.machine, f.Rule)
		default:
			o.others = append(o.others, f.Rule)
		}
		o.evidence = append(o.evidence, tell(f))
	}
	if !o.healthy && !o.right && o.about == "" {
		o.about = "not found"
		if slices.Contains(o.others, want.rule) || slices.Contains(o.machine, want.rule) {
			o.about = "another subject was named"
			o.outdone = slices.Contains(o.machine, want.rule)
		}
	}
	return o
}

// onlyOthers reports whether each container that a finding slows is known to be of another
// workload.
func onlyOthers(slowed []doctor.Subject, ours func(group string) bool) bool {
	return len(slowed) > 0 && !slices.ContainsFunc(slowed, func(s doctor.Subject) bool { return s.Cgroup == "" || ours(s.Cgroup) })
}

// tell returns a finding as one line.
func tell(f doctor.Finding) string {
	s := f.Rule + ": " + f.Title
	if f.Subject != nil {
		s += fmt.Sprintf(" [%s %s %s]", f.Subject.Container, f.Subject.Cgroup, f.Subject.Command)
	}
	for _, w := range f.Against {
		s += fmt.Sprintf(" against %s %s", w.Container, w.Cgroup)
	}
	for _, e := range f.Evidence {
		s += fmt.Sprintf(", %s %s", e.What, e.Found)
	}
	return s
}
