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

// leakedNetworks returns the user-defined networks. free checks later whether a
// container names one.
func (p *planner) leakedNetworks() []candidate {
	var list []candidate
	for _, n := range p.s.Networks {
		if n.Fixed {
			continue
		}
		list = append(list, candidate{
			Deletion: Deletion{Kind: Networks, ID: n.ID, Name: n.Name, LastUse: n.LastUse},
			names:    []string{n.Name, n.ID}, labels: n.Labels,
		})
	}
	return list
}

// danglingVolumes returns all volumes with the local driver.
func (p *planner) danglingVolumes() []candidate {
	var list []candidate
	for _, v := range p.s.Volumes {
		if v.Driver != "local" {
			continue
		}
		list = append(list, candidate{
			Deletion: Deletion{Kind: Volumes, ID: v.Name, Name: v.Name, LastUse: v.LastUse},
			names:    []string{v.Name}, labels: v.Labels,
		})
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
