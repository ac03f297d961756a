package bench

import (
	"slices"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/rule"
)

// ExamVerdict is what the doctor said about one cause of a fault.
type ExamVerdict struct {
	Truth
	// Container: a finding names the culprit; Named: and one of its causes. A culprit of
	// none is named by a finding that names nothing.
	Container bool `json:"container"`
	Named     bool `json:"named"`
	// Known: at least one of the causes is a check of the doctor.
	Known   bool    `json:"known"`
	Seconds float64 `json:"seconds"` // from the fault's start to the report that named it, 0 if none did
}

// suspect tells which container a finding names.
type suspect struct {
	stage *faultStage
	lab   string // the group of all containers and processes of the bench
}

// is reports whether a finding names a culprit.
func (w suspect) is(f doctor.Finding, culprit string) bool {
	switch {
	case culprit == culpritNone:
		return f.Subject == nil
	case f.Subject == nil:
		return false
	case culprit == culpritHost:
		return within(f.Subject.Cgroup, w.stage.group)
	}
	return w.stage.names[culprit][f.Subject.Container]
}

// others reports whether a finding concerns another user of this machine, or is true of the
// machine: judge has the same exceptions.
func (w suspect) others(f doctor.Finding, l look) bool {
	group := ""
	if f.Subject != nil {
		group = f.Subject.Cgroup
	}
	outside := group != "" && !within(group, w.lab)
	return outside || (f.Rule == "slow-machine" || f.Rule == "noisy-neighbour") && l.steal > stolen || f.Rule == deadGroups && group == "" && l.dead() > manyDead
}

// judgeFault adds what a report says to the verdicts. It returns the findings, worse than a
// notice, about containers of the bench that no truth explains.
func judgeFault(verdicts []ExamVerdict, l look, w suspect, seconds float64) (wrong []doctor.Finding) {
	for _, f := range l.report.Findings {
		explained := false
		for i := range verdicts {
			v := &verdicts[i]
			cause := slices.Contains(v.Cause, f.Rule)
			named := w.is(f, v.Culprit)
			v.Container = v.Container || named
			if named && cause && !v.Named {
				v.Named, v.Seconds = true, seconds
			}
			explained = explained || named || cause && f.Subject == nil
		}
		if !explained && f.Severity != rule.Notice && !w.others(f, l) {
			wrong = append(wrong, f)
		}
	}
	return wrong
}

// ExamRow is one fault of the examination.
type ExamRow struct {
	Fault    string        `json:"fault"`
	About    string        `json:"about"`
	HeldOut  bool          `json:"held_out"`
	Beside   []string      `json:"beside"` // distractors
	Verdicts []ExamVerdict `json:"verdicts"`
	Skipped  string        `json:"skipped,omitempty"` // why it did not run
	Said     []string      `json:"said"`              // all findings of the last look
	Unseen   []string      `json:"unseen"`            // what the doctor could not observe in the last look, and why
	Wrong    []string      `json:"wrong"`             // findings, worse than a notice, that accuse an innocent container or nothing
	// Peers has what each peer said about it.
	Peers map[string]PeerVerdict `json:"peers,omitempty"`
}

// right reports whether each cause was named.
func (r ExamRow) right() bool {
	return r.Skipped == "" && !slices.ContainsFunc(r.Verdicts, func(v ExamVerdict) bool { return !v.Named })
}
