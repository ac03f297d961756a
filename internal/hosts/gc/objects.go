package gc

import (
	"cmp"
	"fmt"
	"slices"
)

// containers are those that ended or never started.
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

// leakedNetworks are those that somebody made. Whether a container names one is
// asked later.
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

// danglingVolumes are all volumes of this host.
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

// buildCache is one call of the builder's own pruning, which knows what was used
// when; a list of its own the engine only tells by measuring everything (system
// df).
func (p *planner) buildCache(r Rule) []candidate {
	if !p.s.Builder {
		return nil
	}
	keep := max(r.KeepFor, p.c.MinAge)
	return []candidate{{Deletion: Deletion{Kind: BuildCache, ID: keep.String(), Name: fmt.Sprintf("unused for %v", keep)}}}
}
