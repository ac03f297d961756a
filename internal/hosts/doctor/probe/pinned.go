package probe

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// pinnedProbe finds processes that hold dying memory cgroups: the pages that they lock
// are charged to a group without processes. The kernel reports a dying group's page under
// the nearest living ancestor (Documentation/admin-guide/mm/pagemap.rst).
func pinnedProbe() Probe {
	return Probe{
		Name: "pinned", Sees: "processes that hold dying memory cgroups with locked pages", Once: true,
		Gives: []string{fact.PinnedPages},
		Open:  moment(readPinned),
	}
}

// Bounds of the probe: processes with locked memory, and pages of each.
const (
	maxHolders = 20
	maxSampled = 2000
)

func readPinned(ctx context.Context, h Host) ([]fact.Fact, error) {
	m, ok := h.Groups.Memory()
	if !ok {
		return nil, errors.New("no hierarchy with the memory controller is mounted")
	}
	holders, err := lockers(ctx, h)
	if err != nil {
		return nil, err
	}
	facts := []fact.Fact{}
	total := 0.0
	var unseen error // error of one process; the others are read nevertheless
	if len(holders) > 0 {
		owners, err := os.Open(string(h.Proc) + "/kpagecgroup")
		if err != nil {
			return nil, err
		}
		defer owners.Close()
		inhabited := inhabitedGroups(h, m)
		for _, l := range holders {
			held, file, err := l.pinned(h, owners, inhabited)
			if err != nil && !gone(err) {
				unseen = err
			}
			if held == 0 {
				continue
			}
			total += held
			s := processOf(h, l.pid)
			s.Device = file
			facts = append(facts, fact.Fact{Name: fact.PinnedPages, Value: held, Unit: fact.Bytes, Subject: s})
		}
	}
	return append(facts, host(fact.PinnedPages, total, fact.Bytes)), unseen
}

// locker is a process that locks memory.
type locker struct {
	pid    int
	locked float64 // kB
}

func lockers(ctx context.Context, h Host) ([]locker, error) {
	pids, err := h.Proc.Pids()
	if err != nil {
		return nil, err
	}
	var ls []locker
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		text, err := read(string(h.Proc) + "/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			continue
		}
		// There may be thousands of processes, so only this line is parsed.
		_, rest, _ := strings.Cut(text, "\nVmLck:")
		line, _, _ := strings.Cut(rest, "\n")
		if kb := numbers("VmLck:" + line)["VmLck"]; kb > 0 {
			ls = append(ls, locker{pid, kb})
		}
	}
	sort.Slice(ls, func(i, j int) bool { return cmp.Less(ls[j].locked, ls[i].locked) })
	return ls[:min(len(ls), maxHolders)], nil
}

// inhabitedGroups returns the inodes of the groups with processes of their own.
func inhabitedGroups(h Host, m cgroup.Mount) map[uint64]bool {
	groups := make(map[uint64]bool)
	// On v1 a group does not list processes of other pid namespaces. A group with
	// anonymous memory has living processes, because anonymous memory is freed at exit.
	foreign := !m.V2 && !ownPids(h.Proc)
	_ = walkGroups(m.Point, func(dir string, _ fs.DirEntry) error { // an unreadable hierarchy has no groups
		if hasProcesses(dir) || foreign && hasAnonymous(dir) {
			if ino, ok := inode(dir); ok {
				groups[ino] = true
			}
		}
		return nil
	})
	return groups
}

// hasAnonymous reports whether a v1 group itself has anonymous memory.
func hasAnonymous(dir string) bool {
	text, err := read(dir + "/memory.stat")
	return err == nil && numbers(text)["rss"] > 0
}

// area is the locked memory of one mapping.
type area struct {
	from, to uint64
	file     string
}

// pinned samples the pages that a process locks. It returns the bytes that are charged to
// groups without processes, and the file with most of them.
func (l locker) pinned(h Host, owners *os.File, inhabited map[uint64]bool) (held float64, file string, err error) {
	dir := string(h.Proc) + "/" + strconv.Itoa(l.pid)
	areas, err := lockedAreas(dir + "/smaps")
	if err != nil || len(areas) == 0 {
		return 0, "", err
	}
	pagemap, err := os.Open(dir + "/pagemap")
	if err != nil {
		return 0, "", err
	}
	defer pagemap.Close()
	size := uint64(os.Getpagesize())
	var all uint64
	for _, a := range areas {
		all += (a.to - a.from) / size
	}
	step := max(1, all/maxSampled)
	found := 0.0
	files := make(map[string]float64)
	for _, a := range areas {
		for at := a.from; at < a.to; at += step * size {
			entry, err := word(pagemap, at/size)
			if err != nil {
				return 0, "", err
			}
			const present, frame = 1 << 63, 1<<55 - 1
			if entry&present == 0 || entry&frame == 0 {
				continue
			}
			owner, err := word(owners, entry&frame)
			if err != nil {
				return 0, "", fmt.Errorf("kpagecgroup: %w", err)
			}
			if owner != 0 && owner != 1 && !inhabited[owner] { // 0 is uncharged, 1 the root group
				found++
				files[a.file]++
			}
		}
	}
	if found == 0 {
		return 0, "", nil
	}
	for name, n := range files {
		if file == "" || n > files[file] {
			file = name
		}
	}
	return found * float64(step*size), file, nil
}

// word reads the n-th 64 bits of a file.
func word(f *os.File, n uint64) (uint64, error) {
	var b [8]byte
	if _, err := f.ReadAt(b[:], int64(n*8)); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(b[:]), nil
}

// lockedAreas returns the mappings with the flag "lo" in smaps, proc_pid_smaps(5).
// Programs and libraries are left out: a process that locks all its memory locks them,
// too. They are charged to the group that ran them first, and hold one or two groups.
func lockedAreas(smaps string) ([]area, error) {
	f, err := os.Open(smaps)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var areas []area
	var now area
	programs := make(map[string]bool)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok {
			if slices.Contains(strings.Fields(flags), "lo") && now.to > now.from {
				areas = append(areas, now)
			}
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 5 || strings.HasSuffix(fields[0], ":") {
			continue
		}
		from, to, ok := strings.Cut(fields[0], "-")
		a, err1 := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		if ok && err1 == nil && err2 == nil {
			now = area{a, b, strings.Join(fields[5:], " ")}
			if now.file != "" && strings.Contains(fields[1], "x") {
				programs[now.file] = true
			}
		}
	}
	return slices.DeleteFunc(areas, func(a area) bool { return programs[a.file] }), lines.Err()
}
