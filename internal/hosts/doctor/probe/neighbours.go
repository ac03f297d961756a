package probe

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// neighboursProbe reads the tables of neighbours (arp(7)), which all containers share: how full
// they are, and how often the kernel had to make room. From gc_thresh2 entries on, each new one
// makes the kernel remove others that are not in use, at most every five seconds. At gc_thresh3 none
// is added (neigh_alloc, net/core/neighbour.c).
func neighboursProbe() Probe {
	return Probe{
		Name: "neighbours", Sees: "tables of neighbours that are too small",
		Gives: []string{fact.NeighbourSoft, fact.NeighbourGC, fact.NeighbourDrops},
		Open:  counted(readNeighbours, neighbourFacts),
	}
}

// tables maps the names of the limits to the files with the counters of their tables.
func tables() map[string]string {
	return map[string]string{LimitNeighbours: "arp_cache", LimitNeighbours6: "ndisc_cache"}
}

// readNeighbours returns the counters of each table by the name of its limit.
func readNeighbours(_ context.Context, h Host) (map[string]sample, error) {
	found := make(map[string]sample)
	var last error
	for limit, file := range tables() {
		text, err := read(string(h.Proc) + "/net/stat/" + file)
		soft, err2 := number(string(h.Proc) + "/sys/" + strings.ReplaceAll(strings.TrimSuffix(limit, "3")+"2", ".", "/"))
		s := neighbourCounters(text)
		if gone(err) || gone(err2) {
			continue // the kernel has no IPv6, or this is not the first network namespace
		}
		if err := errors.Join(err, err2); err != nil || s == nil || soft <= 0 {
			last = cmp.Or(err, errors.New(file+": unexpected format"))
			continue
		}
		s["soft"] = s["entries"] / soft
		found[limit] = s
	}
	if len(found) == 0 {
		return nil, last
	}
	return found, nil
}

// neighbourCounters reads a table's counters: a line of names, then one for each CPU in
// hexadecimal. The entries are the same in all of them, and the others are summed.
func neighbourCounters(text string) sample {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	names := strings.Fields(lines[0])
	if len(lines) < 2 {
		return nil
	}
	s := make(sample)
	for _, line := range lines[1:] {
		for i, f := range strings.Fields(line) {
			v, err := strconv.ParseUint(f, 16, 64)
			if i >= len(names) || err != nil {
				return nil
			}
			if names[i] == "entries" {
				s[names[i]] = float64(v)
				continue
			}
			s[names[i]] += float64(v)
		}
	}
	return s
}

func neighbourFacts(h Host, before, after map[string]sample, over time.Duration) ([]fact.Fact, error) {
	var fs []fact.Fact
	for limit, b := range after {
		full, s := min(b["soft"], before[limit]["soft"]), fact.Subject{}
		if full > 1 && limit == LimitNeighbours { // the procfs has no list of those of IPv6
			s = mostOf(context.Background(), h, neighbours)
		}
		s.Device = limit
		fs = append(fs, fact.Fact{Name: fact.NeighbourSoft, Value: full, Unit: fact.Share, Subject: s})
		for key, name := range map[string]string{"forced_gc_runs": fact.NeighbourGC, "table_fulls": fact.NeighbourDrops} {
			if n, ok := b.grew(before[limit], key); ok {
				fs = append(fs, fact.Fact{Name: name, Value: n / over.Seconds(), Unit: fact.PerSecond, Subject: s})
			}
		}
	}
	return fs, nil
}
