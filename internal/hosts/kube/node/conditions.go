// Package node reports the agent's node to the API server: conditions, events,
// and a lease with the node's record. It makes one request every two minutes if
// nothing changes.
package node

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"time"

	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/survey"
)

// Finding is an open finding on the node.
type Finding struct {
	Rule     string // of the doctor
	Severity string // notice, warning or critical
	Title    string
	// Pod is the pod that causes it; nil: the host, or an unknown cause.
	Pod *kube.Reference
	// Workload is the owner that recreates the pod, such as Deployment/web; "":
	// unknown.
	Workload string
}

// Types of the conditions.
const (
	MemcgLeak        = survey.ConditionPrefix + "MemcgLeak"
	KernelContention = survey.ConditionPrefix + "KernelContention"
	DentryBloat      = survey.ConditionPrefix + "DentryBloat"
	LimitsNear       = survey.ConditionPrefix + "LimitsNear"
	SlowHost         = survey.ConditionPrefix + "SlowHost"
)

// Types returns all condition types.
func Types() []string {
	return []string{MemcgLeak, KernelContention, DentryBloat, LimitsNear, SlowHost}
}

// typeOf returns the condition type of a rule, or "" for rules about single
// containers, which are reported as events.
func typeOf(rule string) string {
	switch rule {
	case "dying-cgroups", "pinned-cgroups":
		return MemcgLeak
	case "fadvise-storm", "kernel-lock", "stat-readers", "syscall-storm", "softirq":
		return KernelContention
	case "negative-dentries":
		return DentryBloat
	case "limits-near", "conntrack-full", "inotify-limit", "mount-leak", "socket-memory":
		return LimitsNear
	case "slow-disk", "slow-allocation", "slow-machine", "fragmentation":
		return SlowHost
	}
	return ""
}

// counts reports whether a severity means that containers are slowed down.
func counts(severity string) bool { return severity == "warning" || severity == "critical" }

// Conditions derives one condition of each type from the open findings. It is
// true if a finding of severity warning or worse is open.
func Conditions(open []Finding) []kube.Condition {
	sorted := slices.Clone(open)
	sort.SliceStable(sorted, func(i, j int) bool { // the messages must not depend on the order of findings
		a, b := &sorted[i], &sorted[j]
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Rule, b.Rule)) < 0
	})
	list := make([]kube.Condition, 0, len(Types()))
	for _, kind := range Types() {
		c := kube.Condition{Type: kind, Status: "False", Reason: "NothingFound", Message: "the doctor has no finding of this kind"}
		if i := slices.IndexFunc(sorted, func(f Finding) bool { return typeOf(f.Rule) == kind && counts(f.Severity) }); i >= 0 {
			c = kube.Condition{Type: kind, Status: "True", Reason: reason(sorted[i].Rule), Message: message(sorted[i])}
		}
		list = append(list, c)
	}
	return list
}

// reason converts a rule's name to the format of a condition's reason:
// DyingCgroups.
func reason(rule string) string {
	var b strings.Builder
	for _, word := range strings.Split(rule, "-") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

func message(f Finding) string {
	if f.Pod == nil {
		return f.Title
	}
	of := ""
	if f.Workload != "" {
		of = " of " + f.Workload
	}
	return f.Title + " (pod " + f.Pod.Namespace + "/" + f.Pod.Name + of + ")"
}

// changed sets the transition times: an unchanged status keeps its time. It
// reports whether anything changed.
func changed(before, now []kube.Condition, at time.Time) ([]kube.Condition, bool) {
	differs := false
	out := slices.Clone(now)
	for i := range out {
		out[i].Since, out[i].Heartbeat = at, &at
		j := slices.IndexFunc(before, func(c kube.Condition) bool { return c.Type == out[i].Type })
		if j < 0 {
			differs = true
			continue
		}
		b := before[j]
		if b.Status == out[i].Status {
			out[i].Since = b.Since
		}
		differs = differs || b.Status != out[i].Status || b.Reason != out[i].Reason
	}
	return out, differs
}

// left returns the conditions that an earlier agent set to true.
func left(all []kube.Condition) []kube.Condition {
	return slices.DeleteFunc(slices.Clone(all), func(c kube.Condition) bool {
		return c.Status != "True" || !slices.Contains(Types(), c.Type)
	})
}

// keep retains earlier true conditions that are not true now, and returns them
// and the new list. A condition that this agent has set to true is no longer kept
// as an earlier one's.
func keep(before, now []kube.Condition) (kept, list []kube.Condition) {
	list = slices.Clone(now)
	for _, b := range before {
		i := slices.IndexFunc(list, func(c kube.Condition) bool { return c.Type == b.Type })
		if i >= 0 && list[i].Status != "True" {
			list[i] = b
			kept = append(kept, b)
		}
	}
	return kept, list
}
