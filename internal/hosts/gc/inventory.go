package gc

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"
)

// Running is the kind of containers that no rule removes: those that run, or are
// paused. Only an Inventory has it.
const Running Kind = "running"

// ObjectKinds returns the kinds of an Inventory.
func ObjectKinds() []Kind { return []Kind{Stopped, Created, Running, Networks, Images, Volumes} }

// Object is one object of the engine, with what keeps it.
type Object struct {
	Kind Kind     `json:"kind"`
	ID   string   `json:"id"`   // for a volume, its name
	Name string   `json:"name"` // for display
	Refs []string `json:"refs,omitempty"`
	// Bytes is what the removal of only this object would free; negative: unknown.
	Bytes int64 `json:"bytes"`
	// Shared is the size of an image's layers that other images have, too.
	Shared int64 `json:"shared_bytes"`
	// LastUse is zero if no rule needs it, because uses are not recorded then.
	LastUse time.Time `json:"last_use,omitzero"`
	// Kept says why the object stays; "" if a cycle would delete it now.
	Kept string `json:"kept,omitempty"`
	// Rule is the rule by which a cycle would delete it now.
	Rule string `json:"rule,omitempty"`
}

// Inventory lists the objects of an engine, the largest first.
type Inventory struct {
	At      time.Time `json:"at"`
	Disk    Disk      `json:"disk"`
	Level   Level     `json:"level"`
	Objects []Object  `json:"objects"`
	Bytes   int64     `json:"bytes"` // of all images; shared layers count once
	Notices []string  `json:"notices,omitempty"`
}

// List returns all objects of s, and what keeps each. It is pure.
func List(s State, c Config) Inventory {
	all := newPlanner(s, c) // its counts are those before any deletion
	plan := newPlanner(s, c)
	for i, r := range c.rules() {
		plan.apply(i, r)
	}
	rules := map[string]string{}
	for _, d := range plan.list {
		rules[key(d.Kind, d.ID)] = d.Rule
	}
	out := Inventory{At: s.Now, Disk: s.Disk, Level: c.LevelOf(s.Disk), Objects: []Object{}}
	for _, size := range s.LayerSize {
		out.Bytes += size
	}
	for _, x := range all.everything() {
		o := Object{Kind: x.Kind, ID: x.ID, Name: x.Name, Refs: x.Refs, LastUse: x.LastUse}
		o.Bytes, _ = all.frees(x)
		if x.Kind == Images {
			o.Shared = all.layers.sharedBytes(s.Images[all.imageOf[x.ID]].Layers)
		}
		if (x.Kind == Networks || x.Kind == Volumes) && !slices.Contains(c.kinds(), x.Kind) {
			o.LastUse = time.Time{}
		}
		if o.Rule = rules[key(x.Kind, x.ID)]; o.Rule == "" {
			o.Kept = plan.keeps(x)
		}
		out.Objects = append(out.Objects, o)
	}
	sort.SliceStable(out.Objects, func(i, j int) bool {
		x, y := &out.Objects[i], &out.Objects[j]
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Shared, x.Shared), x.LastUse.Compare(y.LastUse), cmp.Compare(x.Name, y.Name), cmp.Compare(x.ID, y.ID)) < 0
	})
	return out
}

// everything returns all objects.
func (p *planner) everything() []candidate {
	list := slices.Concat(p.images(), p.containers(Stopped), p.containers(Created), p.allNetworks(), p.allVolumes())
	for _, c := range p.s.Containers {
		if !slices.Contains([]string{"exited", "dead", "created"}, c.State) {
			list = append(list, candidate{
				Deletion: Deletion{Kind: Running, ID: c.ID, Name: cmp.Or(c.Name, c.ID), LastUse: p.s.Now}, fixed: "it is " + c.State,
			})
		}
	}
	return list
}

// keeps returns why the plan does not delete x.
func (p *planner) keeps(x candidate) string {
	if why := cmp.Or(p.protects(x), p.user(x)); why != "" {
		return why
	}
	kept := "no rule is for it"
	for i, r := range p.c.rules() {
		if !slices.Contains(r.Kinds, x.Kind) || !selects(r, x) {
			continue
		}
		if p.aged(x, r) {
			return r.name(i) + ": " + p.limits(r)
		}
		kept = fmt.Sprintf("%s: %s, needs %s", r.name(i), p.lastSeen(x), human(max(r.KeepFor, p.c.MinAge)))
	}
	return kept
}

// user names a remaining object that uses x, or returns "".
func (p *planner) user(x candidate) string {
	for _, c := range p.s.Containers {
		if !p.gone[key(Stopped, c.ID)] && holds(c.Holder, x.Deletion) {
			return fmt.Sprintf("container %s uses it (%s)", cmp.Or(c.Name, c.ID), c.State)
		}
	}
	if x.Kind != Images || p.children[x.ID] == 0 {
		return ""
	}
	for _, img := range p.s.Images {
		if img.Parent == x.ID && !p.gone[key(Images, img.ID)] {
			return "image " + nameOf(img) + " is built on it"
		}
	}
	return ""
}

// lastSeen says when x was used last, as far as that is known.
func (p *planner) lastSeen(x candidate) string {
	if x.LastUse.Before(p.s.Blind) {
		return "it may have been used until " + human(p.s.Now.Sub(p.s.Blind)) + " ago"
	}
	return lastUse(x.Deletion, p.s.Now)
}

// limits says what the rule waits for.
func (p *planner) limits(r Rule) string {
	switch {
	case r.Pressure && !p.pressed:
		return fmt.Sprintf("the disk is not over %v", p.c.High)
	case !r.Reserved.IsZero():
		return fmt.Sprintf("%v are reserved", r.Reserved)
	}
	return "its limits are kept without it"
}

// nameOf returns an image's first name, or its id.
func nameOf(img Image) string {
	if len(img.Refs) > 0 {
		return img.Refs[0]
	}
	return img.ID
}

// sharedBytes returns the size of the layers that several images have.
func (c layerCount) sharedBytes(layers []string) (bytes int64) {
	for _, l := range layers {
		if c.users[l] > 1 {
			bytes += c.size[l]
		}
	}
	return bytes
}
