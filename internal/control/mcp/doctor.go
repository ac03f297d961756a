package mcp

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
)

// maxExamine is the longest time that a call may observe the host. It leaves time for
// the answer before the programs' usual limit of a minute.
const maxExamine = 45 * time.Second

// finding is something that slows down containers.
type finding struct {
	Rule     string     `json:"rule"`
	Severity string     `json:"severity"`
	Title    string     `json:"title"`
	Since    string     `json:"since,omitempty"`
	Subject  string     `json:"subject,omitempty" jsonschema:"what causes it"`
	Kernel   string     `json:"kernel_path,omitempty" jsonschema:"innermost function first"`
	Victims  []string   `json:"victims,omitempty" jsonschema:"what it slows down"`
	Evidence []evidence `json:"evidence"`
	Cures    []cure     `json:"cures" jsonschema:"for the operator to decide; no tool carries them out"`
}

type evidence struct {
	What    string `json:"what"`
	Found   string `json:"found"`
	Healthy string `json:"healthy,omitempty"`
}

type cure struct {
	What    string `json:"what"`
	Command string `json:"command,omitempty"`
}

type diagnosis struct {
	Node      string    `json:"node,omitempty"`
	Kernel    string    `json:"kernel,omitempty"`
	At        string    `json:"at,omitempty"`
	Degraded  string    `json:"degraded,omitempty" jsonschema:"why containers are slow on this host"`
	Findings  []finding `json:"findings" jsonschema:"the most severe first; none: nothing was found"`
	Omitted   int       `json:"omitted,omitempty"`
	Fine      int       `json:"fine" jsonschema:"rules that found nothing"`
	NotJudged []string  `json:"not_judged,omitempty" jsonschema:"rules that could not judge, and why"`
	Gaps      []string  `json:"not_observed,omitempty" jsonschema:"what could not be observed, and why"`
}

// Bounds of a diagnosis.
const (
	maxEvidence = 6
	maxCures    = 3
	maxVictims  = 5
	maxNotes    = 8
	maxKernel   = 6 // functions
)

type doctorQuery struct {
	Node  string `json:"node,omitempty" jsonschema:"absent: the agent's own node"`
	Limit int    `json:"limit,omitempty" jsonschema:"at most that many findings"`
}

func doctorStatus(ctx context.Context, c *client.Client, q doctorQuery) (d diagnosis, err error) {
	st, err := c.DoctorStatus(ctx, holdfast.NodeID(q.Node))
	if err != nil {
		return d, err
	}
	d = diagnosis{Node: string(st.Node), Kernel: clip(st.Kernel, maxName), At: stamp(st.At), Degraded: clip(st.Degraded, maxName), Findings: []finding{}}
	some, omitted := first(st.Findings, q.Limit)
	d.Omitted = omitted
	for _, f := range some {
		one := findingOf(f.Finding)
		one.Since = stamp(f.Since)
		d.Findings = append(d.Findings, one)
	}
	d.note(st.Checked, st.Gaps)
	return d, nil
}

type examineQuery struct {
	Seconds int `json:"seconds,omitempty" jsonschema:"how long to observe"`
	Limit   int `json:"limit,omitempty" jsonschema:"at most that many findings"`
}

func (s *Server) examine(ctx context.Context, _ *client.Client, q examineQuery) (d diagnosis, err error) {
	leave, err := enter(s.examining)
	if err != nil {
		return d, err
	}
	defer leave()
	r, err := s.o.Examine(ctx, time.Duration(q.Seconds)*time.Second)
	if err != nil {
		return d, err
	}
	d = diagnosis{Kernel: clip(r.Kernel, maxName), At: stamp(r.At), Findings: []finding{}}
	some, omitted := first(r.Findings, q.Limit)
	d.Omitted = omitted
	for _, f := range some {
		d.Findings = append(d.Findings, findingOf(f))
	}
	d.note(r.Checked, r.Gaps)
	return d, nil
}

// note adds what was and was not examined.
func (d *diagnosis) note(checked []doctor.Check, gaps []fact.Gap) {
	for _, c := range checked {
		switch {
		case c.Verdict == doctor.Fine:
			d.Fine++
		case c.Verdict == doctor.NotJudged && len(d.NotJudged) < maxNotes:
			d.NotJudged = append(d.NotJudged, clip(c.Rule+": "+c.Why, maxName))
		}
	}
	some, _ := first(gaps, maxNotes)
	for _, g := range some {
		d.Gaps = append(d.Gaps, clip(strings.TrimSuffix(fmt.Sprintf("%s: %s; %s", g.Sees, g.Why, g.Hint), "; "), maxName))
	}
}

func findingOf(f doctor.Finding) finding {
	out := finding{Rule: f.Rule, Severity: string(f.Severity), Title: clip(f.Title, maxName), Evidence: []evidence{}, Cures: []cure{}}
	if f.Subject != nil {
		out.Subject = subjectText(*f.Subject)
		path, _ := first(f.Subject.Kernel, maxKernel)
		out.Kernel = clip(strings.Join(path, " < "), maxName)
	}
	victims, _ := first(f.Against, maxVictims)
	for _, v := range victims {
		out.Victims = append(out.Victims, subjectText(v))
	}
	found, _ := first(f.Evidence, maxEvidence)
	for _, e := range found {
		out.Evidence = append(out.Evidence, evidence{clip(e.What, maxName), clip(e.Found, maxName), clip(e.Healthy, maxName)})
	}
	cures, _ := first(f.Cures, maxCures)
	for _, c := range cures {
		out.Cures = append(out.Cures, cure{clip(c.What, maxError), clip(c.Command, maxError)})
	}
	return out
}

// subjectText names a culprit or a victim, the best name first.
func subjectText(s doctor.Subject) string {
	var parts []string
	add := func(what, value string) {
		if value != "" {
			parts = append(parts, what+" "+value)
		}
	}
	if s.Pod != nil {
		add("pod", s.Pod.Namespace+"/"+s.Pod.Name)
	}
	add("container", cmp.Or(s.Container, s.ContainerID[:min(12, len(s.ContainerID))]))
	add("image", s.Image)
	add("session", s.Session)
	if s.Container == "" && s.ContainerID == "" {
		add("control group", s.Cgroup)
	}
	if s.Pid > 0 {
		add("process", fmt.Sprint(s.Pid))
	}
	add("command", s.Command)
	return clip(strings.Join(parts, ", "), maxName)
}
