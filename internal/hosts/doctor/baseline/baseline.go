// Package baseline stores the figures of a healthy host, by kernel and role, and compares
// a host with them.
package baseline

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
)

// Baseline holds the figures of a healthy host.
type Baseline struct {
	Name   string          `json:"name"`
	At     time.Time       `json:"at"`
	Node   holdfast.NodeID `json:"node,omitempty"`
	Kernel string          `json:"kernel"`
	Role   string          `json:"role,omitempty"`
	// Seconds is the duration of the examination.
	Seconds float64 `json:"seconds"`
	// Facts holds one figure per name; see fact.Summary. System is the kernel's share of
	// the CPU time of all control groups.
	Facts   map[string]float64   `json:"facts"`
	Units   map[string]fact.Unit `json:"units"`
	Profile *Profile             `json:"profile,omitempty"`
}

// Profile refers to a recording of the same host. The recording stays where it is; its
// digest identifies copies.
type Profile struct {
	File   string `json:"file"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// Bounds of a baseline.
const (
	MaxName    = 64
	MaxRole    = 32
	maxFacts   = 500
	maxWord    = 256
	MaxProfile = 64 << 20 // bytes of a recording
)

// word holds the characters of names and roles.
const word = "abcdefghijklmnopqrstuvwxyz0123456789.-_"

// CheckName refuses an invalid name. A name becomes the name of a file.
func CheckName(name string) error {
	if name == "" || len(name) > MaxName || strings.Trim(name, word) != "" || name[0] == '.' || name[0] == '-' {
		return fmt.Errorf("%q is not a valid name for a baseline: use up to %d characters of a-z, 0-9, ., - and _", name[:min(len(name), MaxName)], MaxName)
	}
	return nil
}

// Validate refuses values that Save cannot have written.
func (b Baseline) Validate() error {
	if err := CheckName(b.Name); err != nil {
		return err
	}
	switch {
	case len(b.Role) > MaxRole || strings.Trim(b.Role, word) != "":
		return fmt.Errorf("%q is not a valid role", b.Role[:min(len(b.Role), MaxRole)])
	case len(b.Facts) == 0:
		return errors.New("a baseline without facts")
	case len(b.Facts) > maxFacts || len(b.Units) > maxFacts:
		return fmt.Errorf("a baseline of %d facts, at most %d are stored", len(b.Facts), maxFacts)
	case len(b.Kernel) > maxWord || len(b.Node) > maxWord:
		return errors.New("a baseline with a kernel or node name that is too long")
	}
	for name, v := range b.Facts {
		if len(name) > maxWord || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("a baseline with a fact that is not a number: %q", name[:min(len(name), maxWord)])
		}
	}
	return nil
}

// DefaultName returns the name of a baseline that is saved without one: its role and
// kernel.
func DefaultName(role, kernel string) string {
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune(word, r) {
			return r
		}
		return '-'
	}, strings.ToLower(cmp.Or(role, "host")+"-"+cmp.Or(kernel, "unknown")))
	return cmp.Or(strings.TrimLeft(name[:min(len(name), MaxName)], ".-"), "host")
}

// New creates a baseline from the facts of an examination of a healthy host.
func New(name, role string, node holdfast.NodeID, at time.Time, seconds float64, facts []fact.Fact) Baseline {
	var set fact.Set
	set.Add(facts...)
	facts = slices.DeleteFunc(slices.Clone(facts), func(f fact.Fact) bool { return strings.HasPrefix(f.Name, fact.Past) })
	b := Baseline{Name: name, At: at.UTC(), Node: node, Role: role, Kernel: set.Text(fact.KernelRelease), Seconds: seconds, Facts: fact.Summary(facts)}
	if v, ok := systemShare(&set); ok {
		b.Facts[fact.BaseSystem] = v
	}
	if v, ok := set.Host(fact.DiskP99); ok {
		b.Facts[fact.BaseDisk] = v
	}
	all := fact.UnitOf(facts)
	all[fact.BaseSystem], all[fact.BaseDisk] = fact.Share, fact.Millis
	b.Units = make(map[string]fact.Unit)
	for n := range b.Facts {
		b.Units[n] = all[n]
	}
	if b.Name == "" {
		b.Name = DefaultName(role, b.Kernel)
	}
	return b
}

// systemShare returns the kernel's share of the CPU time that the control groups used.
func systemShare(s *fact.Set) (float64, bool) {
	system, all := 0.0, 0.0
	for _, f := range s.Of(fact.GroupSystem) {
		cpu, _ := s.Group(fact.GroupCPU, f.Subject.Cgroup)
		system, all = system+f.Value*cpu, all+cpu
	}
	if all <= 0 {
		return 0, false
	}
	return system / all, true
}

// Known returns the facts of a healthy host that rules need.
func (b Baseline) Known() []fact.Fact {
	var known []fact.Fact
	for _, name := range []string{fact.BaseSystem, fact.BaseDisk} {
		if v, ok := b.Facts[name]; ok {
			known = append(known, fact.Fact{Name: name, Value: v, Unit: b.Units[name], At: b.At})
		}
	}
	return known
}

// Choose returns the baseline for a kernel and a role: the newest for both, or else the
// newest for the kernel without a role. It returns holdfast.ErrNotFound if there is none.
func Choose(all []Baseline, kernel, role string) (Baseline, error) {
	var best *Baseline
	for i := range all {
		b := &all[i]
		if b.Kernel != kernel || b.Role != role && b.Role != "" {
			continue
		}
		if best == nil || b.Role == role && best.Role != role || b.Role == best.Role && b.At.After(best.At) {
			best = b
		}
	}
	if best == nil {
		what := "kernel " + cmp.Or(kernel, "unknown")
		if role != "" {
			what += ", role " + role
		}
		return Baseline{}, holdfast.WithHint(fmt.Errorf("there is no baseline of %s: %w", what, holdfast.ErrNotFound),
			"save one on a healthy host with: holdfast doctor baseline save; or choose one of the list of: holdfast doctor baseline ls")
	}
	return *best, nil
}

// Difference is one fact that differs.
type Difference struct {
	Name    string    `json:"name"`
	Unit    fact.Unit `json:"unit,omitempty"`
	Healthy float64   `json:"healthy"`
	Now     float64   `json:"now"`
	// Factor is the current value divided by the healthy one. It is near 1 if both are so
	// small that their ratio is not significant.
	Factor float64 `json:"factor"`
}

// Comparison is a host compared with a baseline.
type Comparison struct {
	Baseline    Baseline     `json:"baseline"`
	Kernel      string       `json:"kernel"` // of the host that is compared
	Differences []Difference `json:"differences"`
	Missing     []string     `json:"missing"` // facts of the baseline that the host does not have
	Notices     []string     `json:"notices"`
}

// Compare returns the differences between a host and a baseline, the largest first.
func Compare(b Baseline, now Baseline) Comparison {
	c := Comparison{Baseline: b, Kernel: now.Kernel, Differences: []Difference{}, Missing: []string{}, Notices: []string{}}
	if b.Kernel != now.Kernel {
		c.Notices = append(c.Notices, fmt.Sprintf("the baseline is of another kernel: %s, here is %s", cmp.Or(b.Kernel, "unknown"), cmp.Or(now.Kernel, "unknown")))
	}
	if b.Role != now.Role {
		c.Notices = append(c.Notices, fmt.Sprintf("the baseline is of another role: %s, here is %s", cmp.Or(b.Role, "none"), cmp.Or(now.Role, "none")))
	}
	for _, name := range slices.Sorted(maps.Keys(b.Facts)) {
		v, ok := now.Facts[name]
		if !ok {
			c.Missing = append(c.Missing, name)
			continue
		}
		c.Differences = append(c.Differences, Difference{Name: name, Unit: b.Units[name], Healthy: b.Facts[name], Now: v, Factor: factor(b.Facts[name], v, b.Units[name])})
	}
	sort.SliceStable(c.Differences, func(i, j int) bool {
		return cmp.Less(math.Abs(math.Log(c.Differences[j].Factor)), math.Abs(math.Log(c.Differences[i].Factor)))
	})
	return c
}

// factor returns now/healthy with an insignificant amount added to both. 3 stalls per
// second compared with none are thus 4 times as many, and not infinitely more.
func factor(healthy, now float64, unit fact.Unit) float64 {
	floor := map[fact.Unit]float64{
		fact.Count: 10, fact.Bytes: 1 << 20, fact.Seconds: 60, fact.Millis: 0.05, fact.Share: 0.01, fact.PerSecond: 1, fact.MiBPerSec: 1,
	}[unit]
	if floor == 0 {
		floor = 1
	}
	return (max(now, 0) + floor) / (max(healthy, 0) + floor)
}

// ReadProfile returns a reference to a recording.
func ReadProfile(file string) (*Profile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the profile: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, MaxProfile+1))
	if err != nil {
		return nil, fmt.Errorf("read the profile: %w", err)
	}
	if n > MaxProfile {
		return nil, fmt.Errorf("read the profile: %s has more than %d MiB", file, MaxProfile>>20)
	}
	if n == 0 {
		return nil, fmt.Errorf("read the profile: %s is empty", file)
	}
	return &Profile{File: file, SHA256: hex.EncodeToString(sum.Sum(nil)), Bytes: n}, nil
}
