package fact

import (
	"math"
	"strings"
)

// Names of facts that the part which is always on gathers beside the others.
const (
	CPUSome        = "cpu.psi_some"      // share of the look in which something waited for a CPU
	ConnHost       = "conntrack.host"    // share of the host's own table of connections that is in use
	GroupsRemoved  = "cgroups.removed"   // /s: control groups whose directory was removed, in all hierarchies
	GroupsReleased = "cgroups.released"  // /s: control groups that went for good; the removed less these die slowly
	ReclaimSlow    = "reclaim.slow_rate" // /s: reclaims of memory cgroups that took over 1 ms
)

// Summary is a host in one figure for each name: that about the whole host, or the
// largest of those about its parts. Free blocks of memory are added up, without
// the small zones for old devices. Words and what is no number are left out.
func Summary(facts []Fact) map[string]float64 {
	sum := make(map[string]float64)
	whole := make(map[string]bool)
	for _, f := range facts {
		switch {
		case f.Unit == Word || math.IsNaN(f.Value) || math.IsInf(f.Value, 0):
		case f.Name == HighOrderFree:
			if !strings.HasSuffix(f.Subject.Device, " DMA") {
				sum[f.Name] += f.Value
			}
		case f.Subject.IsHost():
			sum[f.Name], whole[f.Name] = f.Value, true
		case !whole[f.Name]:
			if v, ok := sum[f.Name]; !ok || f.Value > v {
				sum[f.Name] = f.Value
			}
		}
	}
	return sum
}

// UnitOf is what the facts of a name count, as far as these facts tell.
func UnitOf(facts []Fact) map[string]Unit {
	units := make(map[string]Unit)
	for _, f := range facts {
		units[f.Name] = f.Unit
	}
	return units
}
