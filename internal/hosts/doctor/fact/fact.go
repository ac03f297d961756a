// Package fact holds what the doctor's probes measure on a host, as plain data with unit
// and time. Rules judge facts, baselines store them and a fleet compares them.
//
// A fact that could not be measured is absent, which differs from zero; a Gap holds the
// reason. Rules that need it do not judge.
package fact

import (
	"cmp"
	"sort"
	"time"
)

// Unit is the unit of a fact's value.
type Unit string

// The units.
const (
	Count     Unit = ""      // things
	Bytes     Unit = "B"     //
	Seconds   Unit = "s"     //
	Millis    Unit = "ms"    //
	Share     Unit = "share" // 0 to 1, of the time or of the whole; over 1 if several subjects count together
	PerSecond Unit = "/s"    //
	MiBPerSec Unit = "MiB/s" //
	Word      Unit = "word"  // the value is Text
)

// Subject is what a fact is about. The zero value is the whole host.
type Subject struct {
	// Cgroup is the path of a control group below its mount: /docker/<id>.
	// With several hierarchies the path is the same in all of them.
	Cgroup  string `json:"cgroup,omitempty"`
	Pid     int    `json:"pid,omitempty"`     // in the doctor's pid namespace, 0 if unknown
	Command string `json:"command,omitempty"` // a thread's name, at most 15 bytes
	Device  string `json:"device,omitempty"`  // vda, cpu3, a slab cache, a zone
	// Kernel is the path through the kernel, the innermost function first.
	Kernel []string `json:"kernel,omitempty"`
	// User is the path through the program, the innermost function first, if its
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
	Text    string    `json:"text,omitempty"` // the value for the unit Word
	Unit    Unit      `json:"unit,omitempty"`
	Subject Subject   `json:"subject,omitzero"`
	At      time.Time `json:"at"`
	// Over is how many seconds the figure covers; 0 is a moment.
	Over float64 `json:"over_s,omitempty"`
}

// Stamp sets the time of facts, and the period of those that cover one and have none.
func Stamp(facts []Fact, at time.Time, over time.Duration) {
	for i := range facts {
		f := &facts[i]
		f.At = at
		if f.Over == 0 && (f.Unit == PerSecond || f.Unit == Share) {
			f.Over = over.Seconds()
		}
	}
}

// Gap is something that could not be observed.
type Gap struct {
	Probe string `json:"probe"`
	Sees  string `json:"sees"` // what cannot be observed without it
	Why   string `json:"why"`
	Hint  string `json:"hint,omitempty"`
}

// Set holds the facts of one examination. The zero value is empty. One goroutine may fill
// it; after that any may read it.
type Set struct {
	Facts []Fact `json:"facts"`
	Gaps  []Gap  `json:"gaps"`

	by map[string][]int
	// groups holds the index of the first fact of a name about a whole group.
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

// Of returns the facts of a name about all subjects, the largest first.
func (s *Set) Of(name string) []Fact {
	fs := make([]Fact, 0, len(s.by[name]))
	for _, i := range s.by[name] {
		fs = append(fs, s.Facts[i])
	}
	sort.SliceStable(fs, func(i, j int) bool { return cmp.Less(fs[j].Value, fs[i].Value) })
	return fs
}

// Has reports whether there is a fact of the name, about any subject.
func (s *Set) Has(name string) bool { return len(s.by[name]) > 0 }

// first returns the first fact of a name with such a subject.
func (s *Set) first(name string, such func(Subject) bool) (Fact, bool) {
	for _, i := range s.by[name] {
		if such(s.Facts[i].Subject) {
			return s.Facts[i], true
		}
	}
	return Fact{}, false
}

// Host returns the value of a fact about the whole host.
func (s *Set) Host(name string) (float64, bool) {
	f, ok := s.first(name, Subject.IsHost)
	return f.Value, ok
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
	f, ok := s.first(name, func(x Subject) bool { return x.Device == device })
	return f.Value, ok
}

// Text returns the Text of a fact about the host, "" if there is none.
func (s *Set) Text(name string) string {
	f, _ := s.first(name, Subject.IsHost)
	return f.Text
}
