// Package rule judges facts. Each rule is a pure function in a file of its own and states
// its signal, its threshold, the reason for the threshold and the source. A rule that
// lacks a fact it needs does not judge.
package rule

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

// Severity is how bad a finding is.
type Severity string

// The severities, the worst last.
const (
	Notice   Severity = "notice"   // worth knowing; nothing is slow because of it yet
	Warning  Severity = "warning"  // a container is slowed down
	Critical Severity = "critical" // the host is sick
)

// Weight orders severities, the worst highest.
func (s Severity) Weight() int {
	switch s {
	case Critical:
		return 2
	case Warning:
		return 1
	}
	return 0
}

// Evidence is a figure next to that of a healthy host.
type Evidence struct {
	What    string `json:"what"`
	Found   string `json:"found"`
	Healthy string `json:"healthy"`
}

// Cure is a remedy, and the command that carries it out if there is one.
type Cure struct {
	What    string `json:"what"`
	Command string `json:"command,omitempty"`
}

// Finding is the result of a rule.
type Finding struct {
	Rule     string     `json:"rule"`
	Severity Severity   `json:"severity"`
	Title    string     `json:"title"`
	Evidence []Evidence `json:"evidence"`
	// Culprit causes the finding; it is the whole host if no subject can be identified.
	// Victims are slowed down by it.
	Culprit fact.Subject   `json:"culprit,omitzero"`
	Victims []fact.Subject `json:"victims,omitempty"`
	Cures   []Cure         `json:"cures"`
}

// Rule detects one pathology.
type Rule struct {
	Name      string   // dying-cgroups
	Signal    string   // the figures that it reads
	Threshold string   // from which values on it is a finding
	Why       string   // the reason for the threshold
	Source    string   // the source of the threshold
	Needs     []string // names of the facts that it needs to judge
	Judge     func(*fact.Set) []Finding
}

// Missing returns the facts that the rule needs and the set lacks.
func (r Rule) Missing(s *fact.Set) []string {
	return slices.DeleteFunc(slices.Clone(r.Needs), s.Has)
}

// All returns the rules in the order of docs/doctor.md.
func All() []Rule {
	return []Rule{
		dyingCgroups(),
		pinnedCgroups(),
		fadviseStorm(),
		negativeDentries(),
		throttled(),
		noisyNeighbour(),
		cpuAffinity(),
		kernelTime(),
		syscallStorm(),
		ownLimit(),
		kernelLock(),
		pageMerging(),
		busyKhugepaged(),
		profiler(),
		ptrace(),
		frozen(),
		fragmentation(),
		conntrackFull(),
		softirq(),
		limitsNear(),
		socketMemory(),
		inotifyLimit(),
		slowDisk(),
		dropCaches(),
		dirtyLimit(),
		stuckTasks(),
		fanotifyWait(),
		statReaders(),
		mountLeak(),
		memoryGrowth(),
		diskGrowth(),
		logStorms(),
		containerChurn(),
		listenOverflow(),
		udpDrops(),
		tcpRetransmits(),
		slowAllocation(),
		oldKernel(),
		slowMachine(),
	}
}

// severity returns Critical if the condition holds, and Warning otherwise.
func severity(critical bool) Severity {
	if critical {
		return Critical
	}
	return Warning
}

// The functions below format figures for evidence.

func percent(v float64) string {
	p := v * 100
	if p > 0 && p < 10 {
		return fmt.Sprintf("%.1f %%", p)
	}
	return fmt.Sprintf("%.0f %%", p)
}

func perSecond(v float64) string { return fmt.Sprintf("%s/s", number(v)) }

func millis(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.2f s", v/1000)
	case v >= 10:
		return fmt.Sprintf("%.0f ms", v)
	case v >= 0.1:
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f µs", v*1000)
}

// number formats v with thousands separators: 50,000.
func number(v float64) string {
	n := fmt.Sprintf("%.0f", math.Abs(v))
	for i := len(n) - 3; i > 0; i -= 3 {
		n = n[:i] + "," + n[i:]
	}
	if v < 0 {
		return "-" + n
	}
	return n
}

func bytes(v float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; v >= 1024 && i < len(units)-1; i++ {
		v /= 1024
	}
	if v < 10 && i > 0 {
		return fmt.Sprintf("%.1f %s", v, units[i])
	}
	return fmt.Sprintf("%.0f %s", v, units[i])
}

// groupPath returns a control group's path if it is safe to paste into a shell, and a
// placeholder otherwise.
func groupPath(p string) string {
	const good = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/:@"
	if strings.Trim(p, good) != "" {
		return "/GROUP"
	}
	return p
}
