// Package fact is what the doctor's probes found out about a host, as plain data
// with unit and time: what the rules judge, what a baseline keeps and what a
// fleet compares.
//
// A fact that could not be had is absent, which is not the same as zero: the
// reason is in a Gap. Rules that need it are not judged.
package fact

import (
	"cmp"
	"slices"
	"time"
)

// Unit is what a fact's value counts.
type Unit string

// The units.
const (
	Count     Unit = ""      // things
	Bytes     Unit = "B"     //
	Seconds   Unit = "s"     //
	Millis    Unit = "ms"    //
	Share     Unit = "share" // 0 to 1, of the time or of the whole; more than 1 where several count together
	PerSecond Unit = "/s"    //
	MiBPerSec Unit = "MiB/s" //
	Word      Unit = "word"  // the fact is its Text
)

// Subject is what a fact is about. The zero value is the whole host.
type Subject struct {
	// Cgroup is the path of a control group below its mount: /docker/<id>.
	// With several hierarchies the path is the same in all of them.
	Cgroup  string `json:"cgroup,omitempty"`
	Pid     int    `json:"pid,omitempty"`     // as seen from here, 0 where unknown
	Command string `json:"command,omitempty"` // a thread's name, at most 15 bytes
	Device  string `json:"device,omitempty"`  // vda, cpu3, a slab cache, a zone
	// Kernel is the path through the kernel, the innermost function first.
	Kernel []string `json:"kernel,omitempty"`
	// User is the path through the program, the innermost function first, where its
	// functions could be named.
	User []string `json:"user,omitempty"`
}

// IsHost reports whether the subject is the whole host.
func (s Subject) IsHost() bool {
	return s.Cgroup == "" && s.Pid == 0 && s.Command == "" && s.Device == "" && len(s.Kernel) == 0
}

// Fact is one figure.
type Fact struct {
	Name    string    `json:"name"`
	Value   float64   `json:"value"`
	Text    string    `json:"text,omitempty"` // of unit Word
	Unit    Unit      `json:"unit,omitempty"`
	Subject Subject   `json:"subject,omitzero"`
	At      time.Time `json:"at"`
	// Over is how many seconds the figure was gathered for; 0 is a moment.
	Over float64 `json:"over_s,omitempty"`
}

// Gap is something that could not be looked at.
type Gap struct {
	Probe string `json:"probe"`
	Sees  string `json:"sees"` // what cannot be seen without it
	Why   string `json:"why"`
	Hint  string `json:"hint,omitempty"`
}

// Set is the facts of one look at a host. The zero value is empty. For one
// goroutine while it is filled, then for any.
type Set struct {
	Facts []Fact `json:"facts"`
	Gaps  []Gap  `json:"gaps"`

	by map[string][]int
	// groups is where the first fact of a name about a whole group is.
	groups map[about]int
}

type about struct{ name, cgroup string }

// Add appends facts.
func (s *Set) Add(facts ...Fact) {
	if s.by == nil {
		s.by, s.groups = make(map[string][]int), make(map[about]int)
	}
	for _, f := range facts {
		if a := (about{f.Name, f.Subject.Cgroup}); f.Subject.Device == "" {
			if _, twice := s.groups[a]; !twice {
				s.groups[a] = len(s.Facts)
			}
		}
		s.by[f.Name] = append(s.by[f.Name], len(s.Facts))
		s.Facts = append(s.Facts, f)
	}
}

// Of returns the facts of a name, of all subjects, the largest first.
func (s *Set) Of(name string) []Fact {
	fs := make([]Fact, 0, len(s.by[name]))
	for _, i := range s.by[name] {
		fs = append(fs, s.Facts[i])
	}
	slices.SortStableFunc(fs, func(a, b Fact) int { return cmp.Compare(b.Value, a.Value) })
	return fs
}

// Has reports whether there is a fact of the name, of whatever subject.
func (s *Set) Has(name string) bool { return len(s.by[name]) > 0 }

// Host returns the value of a fact about the whole host.
func (s *Set) Host(name string) (float64, bool) {
	for _, i := range s.by[name] {
		if s.Facts[i].Subject.IsHost() {
			return s.Facts[i].Value, true
		}
	}
	return 0, false
}

// Group returns the value of a fact about a control group as a whole.
func (s *Set) Group(name, cgroup string) (float64, bool) {
	i, ok := s.groups[about{name, cgroup}]
	if !ok {
		return 0, false
	}
	return s.Facts[i].Value, true
}

// Device returns the value of a fact about a device.
func (s *Set) Device(name, device string) (float64, bool) {
	for _, i := range s.by[name] {
		if f := &s.Facts[i]; f.Subject.Device == device {
			return f.Value, true
		}
	}
	return 0, false
}

// Text returns a word about the host, "" where there is none.
func (s *Set) Text(name string) string {
	for _, i := range s.by[name] {
		if s.Facts[i].Subject.IsHost() {
			return s.Facts[i].Text
		}
	}
	return ""
}
