package gc

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/docker/go-units"

	"holdfast/internal/platform/engine"
)

// Deletion is one object to delete, with the reason.
type Deletion struct {
	Kind    Kind      `json:"kind"`
	ID      string    `json:"id,omitempty"` // for a volume, its name
	Name    string    `json:"name"`         // for display
	Refs    []string  `json:"refs,omitempty"`
	Rule    string    `json:"rule"`
	Reason  string    `json:"reason"`
	LastUse time.Time `json:"last_use,omitzero"`
	// Bytes is the space expected to be freed after the deletions before it;
	// negative: unknown.
	Bytes int64 `json:"bytes"`
	// Layers are the chain ids of the layers expected to be removed with an
	// image.
	Layers []string `json:"layers,omitempty"`
	Goal   Goal     `json:"goal,omitzero"`

	keepFor  time.Duration // minimum age, checked again before the removal
	reserved int64         // of the build cache
}

// Proposal is the result of a plan.
type Proposal struct {
	At        time.Time  `json:"at"`
	Disk      Disk       `json:"disk"`
	Level     Level      `json:"level"`
	Deletions []Deletion `json:"deletions"`
	Bytes     int64      `json:"bytes"` // sum of the known sizes; shared layers count once
	Unknown   int        `json:"unknown"`
	Notices   []string   `json:"notices,omitempty"`
}

// Plan returns what to delete, in order. It is pure. An object that a container
// uses is included only after that container.
func Plan(s State, c Config) Proposal {
	p := newPlanner(s, c)
	for i, r := range c.rules() {
		p.apply(i, r)
	}
	return p.proposal()
}

// planner is one run of Plan.
type planner struct {
	s       State
	c       Config
	pressed bool
	disk    Disk // expected state after the planned deletions
	layers  layerCount
	imageOf map[string]int  // id → index
	gone    map[string]bool // kind and id → planned
	// users counts the remaining containers per image id.
	users    map[string]int
	children map[string]int // image id → remaining images built on it
	networks map[string]int // network name or id → remaining containers
	volumes  map[string]int
	newest   map[string]bool // image id → among the newest of a repository
	list     []Deletion
}

func newPlanner(s State, c Config) *planner {
	p := &planner{
		s: s, c: c, pressed: s.Disk.over(c.High), disk: s.Disk,
		layers: countLayers(s), imageOf: map[string]int{}, gone: map[string]bool{},
		users: map[string]int{}, children: map[string]int{}, networks: map[string]int{}, volumes: map[string]int{},
		newest: newestOf(s.Images, c.KeepNewest),
	}
	for i, img := range s.Images {
		p.imageOf[img.ID] = i
		if img.Parent != "" {
			p.children[img.Parent]++
		}
	}
	for _, h := range s.Containers {
		p.count(h.Holder, 1)
	}
	return p
}

// count adds by to the counts of everything that container h uses.
func (p *planner) count(h engine.Holder, by int) {
	p.users[h.ImageID] += by
	for _, n := range h.Networks {
		p.networks[n] += by
	}
	for _, v := range h.Volumes {
		p.volumes[v] += by
	}
}

// candidate is an object that a rule could remove.
type candidate struct {
	Deletion
	names  []string // matched against the patterns
	labels map[string]string
	fixed  string // why no rule may remove it; "": one may
}

// apply plans the deletions of one rule.
func (p *planner) apply(i int, r Rule) {
	goal, wanted := p.c.goalOf(r, p.disk, p.pressed)
	limit := !r.MaxUsed.IsZero() && p.s.Disk.knows(r.MaxUsed)
	if r.limited() && !wanted && !limit || !p.s.Disk.knows(r.Reserved) {
		return
	}
	var found []candidate
	for _, k := range r.Kinds {
		found = append(found, p.candidates(k, r)...)
	}
	found = slices.DeleteFunc(found, func(x candidate) bool { return !p.may(x, r) })
	sort.SliceStable(found, func(i, j int) bool {
		x, y := &found[i], &found[j]
		return cmp.Or(x.LastUse.Compare(y.LastUse), cmp.Compare(x.Name, y.Name), cmp.Compare(x.ID, y.ID)) < 0
	})
	used := p.usedBy(found, r)
	for progress := true; progress; {
		// Repeat: an image can be removed once its children are planned.
		progress = false
		for _, x := range found {
			if p.gone[key(x.Kind, x.ID)] || !p.free(x) {
				continue
			}
			over := limit && used > r.MaxUsed.Of(p.s.Disk.Total)
			if r.limited() && !over && (goal == Goal{} || goal.reached(p.disk)) {
				return
			}
			bytes, layers := p.frees(x)
			if x.Kind == Images && !r.Reserved.IsZero() && used-bytes < r.Reserved.Of(p.s.Disk.Total) {
				return
			}
			d := x.Deletion
			d.Bytes, d.Layers, d.Rule, d.keepFor = bytes, layers, r.name(i), max(r.KeepFor, p.c.MinAge)
			d.reserved = r.Reserved.Of(p.s.Disk.Total)
			d.Reason = reason(p, d, r, over)
			if !over && r.limited() {
				d.Goal = goal
			}
			p.take(d)
			used -= max(bytes, 0)
			progress = true
		}
	}
}

// candidates returns the objects of a kind, whether in use or not.
func (p *planner) candidates(k Kind, r Rule) []candidate {
	switch k {
	case Stopped, Created:
		return p.containers(k)
	case Networks:
		return p.allNetworks()
	case Images:
		return p.images()
	case Volumes:
		return p.allVolumes()
	case BuildCache:
		return p.buildCache(r)
	}
	return nil
}

// may reports whether names, labels and age allow the rule to remove x.
func (p *planner) may(x candidate, r Rule) bool {
	return p.protects(x) == "" && selects(r, x) && p.aged(x, r)
}

// protects returns what keeps x from all rules, or "".
func (p *planner) protects(x candidate) string {
	if x.fixed != "" {
		return x.fixed
	}
	for _, l := range slices.Concat(alwaysProtected[:], p.c.Protect) {
		if hasLabel(x.labels, l) {
			return "it has the label " + l
		}
	}
	for _, pattern := range p.c.Keep {
		if anyMatches([]string{pattern}, x.names) {
			return "gc.keep or the prefetch list has " + pattern
		}
	}
	if x.Kind == Images && p.newest[x.ID] {
		return fmt.Sprintf("it is one of the %d newest of its repository", p.c.KeepNewest)
	}
	return ""
}

// selects reports whether the names and labels of x are those of the rule.
func selects(r Rule, x candidate) bool {
	if r.Dangling && len(x.Refs) > 0 || len(r.Match) > 0 && !anyMatches(r.Match, x.names) {
		return false
	}
	return !slices.ContainsFunc(r.Labels, func(l string) bool { return !hasLabel(x.labels, l) })
}

// aged reports whether x was not used for as long as the rule demands.
func (p *planner) aged(x candidate, r Rule) bool {
	return x.Kind == BuildCache || old(p.s, x.LastUse, max(r.KeepFor, p.c.MinAge))
}

// old reports whether the last use was at least least ago. A use that may have
// been missed counts as a use.
func old(s State, last time.Time, least time.Duration) bool {
	if last.Before(s.Blind) {
		last = s.Blind
	}
	return max(s.Now.Sub(last), 0) >= least
}

// free reports whether no remaining object uses x.
func (p *planner) free(x candidate) bool {
	switch x.Kind {
	case Images:
		return p.users[x.ID] == 0 && p.children[x.ID] == 0
	case Networks:
		return p.networks[x.ID] == 0 && p.networks[x.Name] == 0
	case Volumes:
		return p.volumes[x.ID] == 0
	}
	return true
}

// frees returns the bytes and the layers that the removal of x would free.
func (p *planner) frees(x candidate) (int64, []string) {
	if x.Kind == Images {
		return p.layers.only(p.s.Images[p.imageOf[x.ID]].Layers)
	}
	if x.Kind == Networks {
		return 0, nil
	}
	return -1, nil
}

// take adds a deletion to the plan.
func (p *planner) take(d Deletion) {
	p.gone[key(d.Kind, d.ID)] = true
	p.disk.Free += max(d.Bytes, 0)
	switch d.Kind {
	case Images:
		img := p.s.Images[p.imageOf[d.ID]]
		p.layers.drop(img.Layers)
		p.children[img.Parent]--
	case Stopped, Created:
		i := slices.IndexFunc(p.s.Containers, func(c Container) bool { return c.ID == d.ID })
		p.count(p.s.Containers[i].Holder, -1)
	}
	p.list = append(p.list, d)
}

func (p *planner) proposal() Proposal {
	out := Proposal{At: p.s.Now, Disk: p.s.Disk, Level: p.c.LevelOf(p.s.Disk), Deletions: p.list}
	if out.Deletions == nil {
		out.Deletions = []Deletion{}
	}
	for _, d := range p.list {
		out.Bytes += max(d.Bytes, 0)
		if d.Bytes < 0 {
			out.Unknown++
		}
	}
	if p.pressed {
		goal, _ := p.c.goalOf(Rule{Pressure: true}, p.s.Disk, true)
		if !goal.reached(p.disk) && out.Unknown == 0 {
			out.Notices = append(out.Notices, fmt.Sprintf("this does not reach the low mark (%v): the rest is in use, too young or kept", p.c.Low))
		}
	}
	return out
}

func key(k Kind, id string) string {
	if k == Created {
		k = Stopped
	}
	return string(k) + " " + id
}

// reason returns one line that says why an object is deleted.
func reason(p *planner, d Deletion, r Rule, over bool) string {
	var why string
	switch {
	case over:
		why = fmt.Sprintf("over max_used %v", r.MaxUsed)
	case r.Pressure && p.pressed:
		why = fmt.Sprintf("disk over %v", p.c.High)
	case r.limited():
		why = "too little free space"
	default:
		why = "not needed"
	}
	if d.Kind == BuildCache {
		return why
	}
	return fmt.Sprintf("%s, %s", why, lastUse(d, p.s.Now))
}

// human returns a duration in words, such as "2 weeks".
func human(d time.Duration) string { return strings.ToLower(units.HumanDuration(d)) }

func lastUse(d Deletion, now time.Time) string {
	ago := human(now.Sub(d.LastUse))
	switch d.Kind {
	case Created:
		return "never started, created " + ago + " ago"
	case Stopped:
		return "ended " + ago + " ago"
	case Networks:
		return "no container names it, last used " + ago + " ago"
	}
	return "last used " + ago + " ago"
}
