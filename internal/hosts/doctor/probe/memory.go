package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// memoryProbe reads memory, slab, free blocks and stalls of the host.
func memoryProbe() Probe {
	return Probe{
		Name: "memory", Sees: "memory, slab, fragmentation, memory pressure of the host",
		Gives: []string{fact.MemTotal, fact.SlabTotal, fact.SlabReclaim, fact.MemPSIFull, fact.AllocStalls, fact.CompactStalls, fact.HighOrderFree, fact.SlabCache},
		Start: func(_ context.Context, h Host) (Finish, error) {
			before := readStalls(h)
			return func(_ context.Context, over time.Duration) ([]fact.Fact, error) {
				fs := readStalls(h).since(before, over)
				more, err := readMemory(h)
				return append(fs, more...), err
			}, nil
		},
	}
}

// stalls holds counters by name. A counter that cannot be read is absent.
type stalls map[string]float64

func readStalls(h Host) stalls {
	s := make(stalls)
	if text, err := read(string(h.Proc) + "/vmstat"); err == nil {
		for name, v := range numbers(text) {
			if strings.HasPrefix(name, "allocstall") { // one for each zone, or a single one before Linux 4.10
				s["alloc"] += v
			}
			if name == "compact_stall" {
				s["compact"] = v
			}
		}
	}
	if text, err := read(string(h.Proc) + "/pressure/memory"); err == nil {
		if v, ok := pressure(text)["full"]; ok {
			s["full"] = v
		}
	}
	return s
}

func (s stalls) since(before stalls, over time.Duration) []fact.Fact {
	var fs []fact.Fact
	for key, name := range map[string]string{"alloc": fact.AllocStalls, "compact": fact.CompactStalls, "full": fact.MemPSIFull} {
		a, ok1 := before[key]
		b, ok2 := s[key]
		v, ok3 := rate(a, b, over)
		if ok1 && ok2 && ok3 {
			unit := fact.PerSecond
			if key == "full" {
				unit = fact.Share
			}
			fs = append(fs, host(name, v, unit))
		}
	}
	return fs
}

func readMemory(h Host) ([]fact.Fact, error) {
	fs, err := readPages(h)
	caches, err2 := readCaches(h)
	return append(fs, caches...), errors.Join(err, err2)
}

// readPages reads the size of memory and its free blocks.
func readPages(h Host) ([]fact.Fact, error) {
	var fs []fact.Fact
	info, err1 := read(string(h.Proc) + "/meminfo")
	if err1 == nil {
		m := numbers(info)
		for key, name := range map[string]string{"MemTotal": fact.MemTotal, "Slab": fact.SlabTotal, "SReclaimable": fact.SlabReclaim} {
			if v, ok := m[key]; ok {
				fs = append(fs, host(name, v*1024, fact.Bytes))
			}
		}
	}
	buddy, err2 := read(string(h.Proc) + "/buddyinfo")
	if err2 == nil {
		zones, err := highOrders(buddy)
		fs, err2 = append(fs, zones...), err
	}
	return fs, errors.Join(err1, err2)
}

func readCaches(h Host) ([]fact.Fact, error) {
	slab, err := read(string(h.Proc) + "/slabinfo")
	if err != nil {
		return nil, err
	}
	return largestCaches(slab)
}

// hugeOrder is the order of a block of 2 MiB, in pages of 4 KiB.
const hugeOrder = 9

// highOrders counts the free blocks of hugeOrder and above by zone,
// proc_buddyinfo(5):
//
//	Node 0, zone   Normal  11344  2758 …
func highOrders(text string) ([]fact.Fact, error) {
	var fs []fact.Fact
	for line := range strings.Lines(text) {
		node, rest, ok := strings.Cut(strings.TrimSpace(line), ", zone ")
		f := strings.Fields(rest)
		if !ok || len(f) < hugeOrder+2 {
			return fs, fmt.Errorf("buddyinfo: unexpected format: %q", line)
		}
		orders, err := floats(strings.Join(f[1:], " "))
		if err != nil {
			return fs, fmt.Errorf("buddyinfo: %w", err)
		}
		free := 0.0
		for order, n := range orders {
			if order >= hugeOrder {
				free += n * float64(int(1)<<(order-hugeOrder))
			}
		}
		fs = append(fs, fact.Fact{Name: fact.HighOrderFree, Value: free, Subject: fact.Subject{Device: node + " " + f[0]}})
	}
	return fs, nil
}

// shownCaches is the number of slab caches that become facts.
const shownCaches = 5

// largestCaches returns the slab caches that use most memory, slabinfo(5).
func largestCaches(text string) ([]fact.Fact, error) {
	var fs []fact.Fact
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] == "slabinfo" || f[0] == "#" {
			continue
		}
		v, err := floats(f[2] + " " + f[3]) // num_objs, objsize
		if err != nil {
			return nil, fmt.Errorf("slabinfo: %w", err)
		}
		fs = append(fs, fact.Fact{Name: fact.SlabCache, Value: v[0] * v[1], Unit: fact.Bytes, Subject: fact.Subject{Device: f[0]}})
	}
	slices.SortStableFunc(fs, func(a, b fact.Fact) int { return cmp.Compare(b.Value, a.Value) })
	return fs[:min(len(fs), shownCaches)], nil
}
