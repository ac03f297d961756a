package fact

import (
	"math"
	"strings"
)

// Summary reduces a host's facts to one figure per name: the fact about the whole host,
// or the largest of those about its parts. Free blocks of memory are summed, except for
// the small zones for old devices. Texts and values that are not numbers are left out.
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

// UnitOf returns the unit of each name in these facts.
func UnitOf(facts []Fact) map[string]Unit {
	units := make(map[string]Unit)
	for _, f := range facts {
		units[f.Name] = f.Unit
	}
	return units
}
