package gc

import (
	"cmp"
	"fmt"
	"slices"
)

// containers returns the containers that exited or never started.
func (p *planner) containers(k Kind) []candidate {
	state := map[Kind][]string{Stopped: {"exited", "dead"}, Created: {"created"}}[k]
	var list []candidate
	for _, c := range p.s.Containers {
		if !slices.Contains(state, c.State) {
			continue
		}
		list = append(list, candidate{
			Deletion: Deletion{Kind: k, ID: c.ID, Name: cmp.Or(c.Name, c.ID), LastUse: c.LastUse},
			names:    []string{c.Name, c.ID}, labels: c.Labels,
		})
	}
	return list
}

// allNetworks returns all networks. No rule may remove the engine's own. free checks later
// whether a container names one.
func (p *planner) allNetworks() []candidate {
	var list []candidate
	for _, n := range p.s.Networks {
		x := candidate{
			Deletion: Deletion{Kind: Networks, ID: n.ID, Name: n.Name, LastUse: n.LastUse},
			names:    []string{n.Name, n.ID}, labels: n.Labels,
		}
		if n.Fixed {
			x.fixed = "it is the engine's own"
		}
		list = append(list, x)
	}
	return list
}

// allVolumes returns all volumes. Rules may remove those with the local driver.
func (p *planner) allVolumes() []candidate {
	var list []candidate
	for _, v := range p.s.Volumes {
		x := candidate{
			Deletion: Deletion{Kind: Volumes, ID: v.Name, Name: v.Name, LastUse: v.LastUse},
			names:    []string{v.Name}, labels: v.Labels,
		}
		if v.Driver != "local" {
			x.fixed = fmt.Sprintf("its driver is %s, not local", v.Driver)
		}
		list = append(list, x)
	}
	return list
}

// buildCache returns one call of the builder's own prune, which knows the times
// of use. The engine lists its cache only in a full measurement (system df).
func (p *planner) buildCache(r Rule) []candidate {
	if !p.s.Builder {
		return nil
	}
	keep := max(r.KeepFor, p.c.MinAge)
	return []candidate{{Deletion: Deletion{Kind: BuildCache, ID: keep.String(), Name: fmt.Sprintf("unused for %v", keep)}}}
}
