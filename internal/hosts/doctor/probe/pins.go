package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// pinsProbe finds the living groups below which pages hold dying memory cgroups.
func pinsProbe() Probe {
	return Probe{
		Name: "pins", Sees: "the pages that hold dying memory cgroups", Once: true,
		Gives: []string{fact.MemcgPins},
		Open: moment(func(ctx context.Context, h Host) ([]fact.Fact, error) {
			fs, err := readMemcg(ctx, h)
			if err != nil || fact.Summary(fs)[fact.MemcgDying] < scanFrom {
				return nil, err
			}
			return scanPins(ctx, h)
		}),
	}
}

// scanFrom is the number of dying groups from which their pages are searched. The search
// reads a part of an array of all the host's pages.
const scanFrom = 100

// Bounds of the scan: its block size (entries for 512 KiB of memory), the distance of the
// blocks, and its time.
const (
	scanBlock = 1 << 10
	scanEvery = 4
	scanLimit = 5 * time.Second
)

// shownPins is the number of groups that become facts.
const shownPins = 20

// scanPins samples /proc/kpagecgroup, which holds for each page of memory the inode of
// the group that it is charged to. For the page of a dying group it holds the inode of
// the nearest living ancestor (Documentation/admin-guide/mm/pagemap.rst). A group without
// processes that has pages therefore has pages of dying groups below it. The root is left
// out, because it has pages of its own.
func scanPins(ctx context.Context, h Host) ([]fact.Fact, error) {
	m, ok := h.Groups.Memory()
	if !ok {
		return nil, nil
	}
	paths, inhabited := inodes(m), inhabitedGroups(h, m)
	f, err := os.Open(string(h.Proc) + "/kpagecgroup")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	pages := make(map[uint64]float64)
	begin := time.Now()
	buf := make([]byte, scanBlock)
	for at := int64(0); ctx.Err() == nil && time.Since(begin) < scanLimit; at += scanEvery * scanBlock {
		n, err := f.ReadAt(buf, at)
		for i := 0; i+8 <= n; i += 8 {
			if owner := binary.NativeEndian.Uint64(buf[i:]); owner > 1 && !inhabited[owner] {
				pages[owner]++
			}
		}
		if errors.Is(err, io.EOF) || n == 0 {
			break
		} else if err != nil {
			return nil, fmt.Errorf("kpagecgroup: %w", err)
		}
	}
	var fs []fact.Fact
	for ino, n := range pages {
		if p, ok := paths[ino]; ok {
			fs = append(fs, fact.Fact{Name: fact.MemcgPins, Value: n * scanEvery * float64(os.Getpagesize()), Unit: fact.Bytes,
				Subject: fact.Subject{Cgroup: p}})
		}
	}
	return largest(fs, shownPins), nil
}
