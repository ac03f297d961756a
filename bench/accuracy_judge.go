package bench

import (
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/rule"
)

// expected is what the doctor has to say of a host.
type expected struct {
	rule      string // "" on a healthy host: nothing
	group     string // the culprit's
	container string // its name, "" for a control group alone
	made      int    // memory cgroups that the bench has made and removed so far
}

// is reports whether a finding is about what had to be found.
func (want expected) is(f doctor.Finding) bool {
	switch {
	case want.rule == "":
		return false
	case f.Subject != nil && want.container != "":
		return f.Subject.Container == want.container // of which not every engine says the group
	case f.Subject != nil:
		return within(f.Subject.Cgroup, want.group)
	}
	// Where the kernel does not tell whose the dead are, those whom they may be of
	// are listed, and nobody is blamed.
	return want.rule == deadGroups && slices.ContainsFunc(f.Evidence, func(e rule.Evidence) bool { return strings.Contains(e.What, " "+want.group) })
}

// deadGroups is the one finding that may have several candidates.
const deadGroups = "dying-cgroups"

// outcome is what came out of one look.
type outcome struct {
	healthy bool // nothing had to be found
	// right: the drill was named, and its container or group.
	right bool
	// about is the reason where it was not.
	about string
	// outdone: it was not, because somebody else on this machine does the same.
	outdone bool
	// own are other findings, by rule, that name the drill's own container or
	// group; others those that name somebody else or nobody; machine those that
	// are true of the machine and not of what was made on it.
	own, others, machine []string
	evidence             []string // of others and machine, for the notes
	unseen               []string // rules that could not be judged
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

// stolen is from which share of stolen CPU time on a machine is slow by its
// hypervisor, whatever runs on it.
const stolen = 0.10

// manyDead is from how many dead groups on they are a finding.
const manyDead = 2000

// judge compares a report with what had to be found. ours tells the control groups
// that the bench has made from those of others who use this machine.
//
// A finding is true of the machine if it names a group that is not ours, or says
// that the hypervisor takes time away and this program has seen that, too, or that
// healthy containers wait for CPUs of which that has taken so much, or blames nobody
// for more dead groups than this program can have left.
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
			o.about = "somebody else was named"
			o.outdone = slices.Contains(o.machine, want.rule)
		}
	}
	return o
}

// tell is a finding in a line.
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
