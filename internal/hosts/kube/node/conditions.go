// Package node is what an agent tells the API server of its node: conditions and
// events where people look for them, and a lease with the node's record. It asks for
// little: a request every two minutes where nothing changes.
package node

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"holdfast/internal/hosts/kube"
)

// Finding is one that is open on the node.
type Finding struct {
	Rule     string // of the doctor
	Severity string // notice, warning or critical
	Title    string
	// Pod is who does it; nil: the host, or nobody that has a name.
	Pod *kube.Reference
	// Workload is what makes that pod anew, Deployment/web; "": nobody knows.
	Workload string
}

// Types of the conditions, and what begins all of them.
const (
	Prefix           = "Holdfast"
	MemcgLeak        = Prefix + "MemcgLeak"
	KernelContention = Prefix + "KernelContention"
	DentryBloat      = Prefix + "DentryBloat"
	LimitsNear       = Prefix + "LimitsNear"
	SlowHost         = Prefix + "SlowHost"
)

// Types are all of them.
func Types() []string {
	return []string{MemcgLeak, KernelContention, DentryBloat, LimitsNear, SlowHost}
}

// typeOf is the condition that a rule is about, "" for rules about single containers,
// which events tell of.
func typeOf(rule string) string {
	switch rule {
	case "dying-cgroups", "pinned-cgroups":
		return MemcgLeak
	case "fadvise-storm", "kernel-lock", "stat-readers", "syscall-storm", "softirq":
		return KernelContention
	case "negative-dentries":
		return DentryBloat
	case "limits-near", "conntrack-full", "inotify-limit", "mount-leak":
		return LimitsNear
	case "slow-disk", "slow-allocation", "slow-machine", "fragmentation":
		return SlowHost
	}
	return ""
}

// counts reports whether a severity is one that slows somebody down.
func counts(severity string) bool { return severity == "warning" || severity == "critical" }

// Conditions are what findings come to: one of each type, true where a finding of
// severity warning or worse is open.
func Conditions(open []Finding) []kube.Condition {
	sorted := slices.SortedStableFunc(slices.Values(open), func(a, b Finding) int { // what is said must not depend on their order
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Rule, b.Rule))
	})
	list := make([]kube.Condition, 0, len(Types()))
	for _, kind := range Types() {
		c := kube.Condition{Type: kind, Status: "False", Reason: "NothingFound", Message: "the doctor finds nothing of the kind"}
		for _, f := range sorted {
			if typeOf(f.Rule) != kind || !counts(f.Severity) {
				continue
			}
			if c.Status == "False" {
				c = kube.Condition{Type: kind, Status: "True", Reason: reason(f.Rule), Message: message(f)}
			}
		}
		list = append(list, c)
	}
	return list
}

// reason is a rule's name as Kubernetes wants reasons: DyingCgroups.
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

// changed gives conditions their times: a status that was there before keeps its own. It
// reports whether there is anything to say.
func changed(before, now []kube.Condition, at time.Time) ([]kube.Condition, bool) {
	differs := false
	out := slices.Clone(now)
	for i := range out {
		out[i].Since = at
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
	for i := range out {
		out[i].Heartbeat = &at
	}
	return out, differs
}

// left are those of a node's conditions that an agent has set to true.
func left(all []kube.Condition) []kube.Condition {
	return slices.DeleteFunc(slices.Clone(all), func(c kube.Condition) bool {
		return c.Status != "True" || !slices.Contains(Types(), c.Type)
	})
}

// keep leaves those as they were before that are not true now, and returns them beside
// the list. One that has become true by our own doing is ours from then on.
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
