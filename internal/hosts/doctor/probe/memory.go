package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"holdfast/internal/hosts/doctor/fact"
)

// memoryProbe reads memory, slab, free blocks and stalls of the host.
func memoryProbe() Probe {
	return Probe{
		Name: "memory", Sees: "memory, slab, fragmentation, memory pressure of the host",
		Gives: []string{fact.MemTotal, fact.MemHuge, fact.SlabTotal, fact.SlabReclaim, fact.MemPSIFull, fact.AllocStalls, fact.CompactStalls, fact.HighOrderFree},
		Open: counted(readStalls, func(h Host, before, after sample, over time.Duration) ([]fact.Fact, error) {
			fs, err := readMemory(h)
			for key, name := range map[string]string{"alloc": fact.AllocStalls, "compact": fact.CompactStalls} {
				if v, ok := after.grew(before, key); ok {
					fs = append(fs, host(name, v/over.Seconds(), fact.PerSecond))
				}
			}
			if v, ok := after.grew(before, "full"); ok {
				fs = append(fs, host(fact.MemPSIFull, v/over.Seconds(), fact.Share))
			}
			return fs, err
		}),
	}
}

// slabProbe reads the largest slab caches, and how much memory the kernel keeps free.
func slabProbe() Probe {
	return Probe{
		Name: "slab", Sees: "the largest slab caches, and the memory that is kept free", Once: true, Rare: true,
		Gives: []string{fact.SlabCache, fact.MemKept},
		Open: moment(func(ctx context.Context, h Host) ([]fact.Fact, error) {
			kept, err := keptFree(h)
			caches, err2 := readCaches(ctx, h)
			return append(caches, kept...), errors.Join(err, err2)
		}),
	}
}

func readStalls(_ context.Context, h Host) (sample, error) {
	s := make(sample)
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
	s.stall("full", "full", read, string(h.Proc)+"/pressure/memory")
	return s, nil
}

// readMemory reads the size of memory and its free blocks.
func readMemory(h Host) ([]fact.Fact, error) {
	var fs []fact.Fact
	info, err := read(string(h.Proc) + "/meminfo")
	m := numbers(info)
	for key, name := range map[string]string{"MemTotal": fact.MemTotal, "Slab": fact.SlabTotal, "SReclaimable": fact.SlabReclaim} {
		if v, ok := m[key]; ok {
			fs = append(fs, host(name, v*1024, fact.Bytes))
		}
	}
	if unused, all := (m["HugePages_Free"]-m["HugePages_Rsvd"])*m["Hugepagesize"], m["MemTotal"]; unused > 0 && all > 0 {
		fs = append(fs, host(fact.MemHuge, unused/all, fact.Share))
	}
	zones, err2 := parsed(h, procfs.FS.BuddyInfo)
	for _, z := range zones {
		if len(z.Sizes) <= hugeOrder {
			return fs, errors.Join(err, fmt.Errorf("buddyinfo: only %d orders of blocks", len(z.Sizes)))
		}
		fs = append(fs, fact.Fact{Name: fact.HighOrderFree, Value: highOrders(z.Sizes), Subject: fact.Subject{Device: "Node " + z.Node + " " + z.Zone}})
	}
	return fs, errors.Join(err, err2)
}

// hugeOrder is the order of a block of 2 MiB, in pages of 4 KiB.
const hugeOrder = 9

// highOrders counts the free blocks of hugeOrder and above by the free blocks of each
// order, proc_buddyinfo(5). A larger block counts as several.
func highOrders(orders []float64) float64 {
	free := 0.0
	for order, n := range orders {
		if order >= hugeOrder {
			free += n * float64(int(1)<<(order-hugeOrder))
		}
	}
	return free
}

// keptFree compares the high watermarks of all zones, up to which kswapd frees memory, with their size
// (proc_zoneinfo(5), Documentation/admin-guide/sysctl/vm.rst, watermark_scale_factor).
func keptFree(h Host) ([]fact.Fact, error) {
	zones, err := parsed(h, procfs.FS.Zoneinfo)
	if err != nil {
		return nil, fmt.Errorf("zoneinfo: %w", err)
	}
	kept, all := 0.0, 0.0
	for _, z := range zones {
		if z.High != nil && z.Managed != nil && *z.Managed > 0 {
			kept, all = kept+float64(*z.High), all+float64(*z.Managed)
		}
	}
	if all == 0 {
		return nil, nil
	}
	return []fact.Fact{host(fact.MemKept, kept/all, fact.Share)}, nil
}

// shownCaches is the number of slab caches that become facts.
const shownCaches = 5

// readCaches returns the slab caches that use most memory, slabinfo(5).
func readCaches(_ context.Context, h Host) ([]fact.Fact, error) {
	info, err := parsed(h, procfs.FS.SlabInfo)
	if err != nil {
		return nil, fmt.Errorf("slabinfo: %w", err)
	}
	var fs []fact.Fact
	for _, s := range info.Slabs {
		fs = append(fs, fact.Fact{Name: fact.SlabCache, Value: float64(s.ObjNum * s.ObjSize), Unit: fact.Bytes, Subject: fact.Subject{Device: s.Name}})
	}
	return largest(fs, shownCaches), nil
}
