package profile

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ianlancetaylor/demangle"

	"holdfast/internal/linux/cgroup"
	"holdfast/internal/linux/perf/symbol"
)

// assemble gives what was counted its names, and says what it could not find out.
// only keeps the container whose id begins so.
func (t *tracker) assemble(p *Profile, n *names, only string) (gaps []string) {
	owners := make(map[uint64]Who)
	kernel, byFile := []uint64(nil), make(map[int][]uint64)
	seen := make(map[place]bool)
	stacks := make(map[int][]place)
	for k := range t.counts {
		who, ok := owners[k.group]
		if !ok {
			who = n.who(t.groups.path(k.group))
			owners[k.group] = who
		}
		if !strings.HasPrefix(who.ContainerID, only) || stacks[k.stack] != nil {
			continue
		}
		stacks[k.stack] = decodePlaces(t.places[k.stack])
		for _, at := range stacks[k.stack] {
			if seen[at] {
				continue
			}
			seen[at] = true
			if at.file == 0 {
				kernel = append(kernel, at.at)
			} else {
				byFile[at.file] = append(byFile[at.file], at.at)
			}
		}
	}
	names := make(map[place]string, len(seen))
	kernelNames, err := symbol.Kernel(string(t.proc), kernel)
	if err != nil {
		gaps = append(gaps, "functions of the kernel have no names: "+err.Error())
	}
	for a, name := range kernelNames {
		names[place{0, a}] = name
	}
	gaps = append(gaps, t.nameFiles(byFile, names)...)
	t.fill(p, owners, stacks, names, only)
	return gaps
}

// fill makes the samples, those that look alike as one.
func (t *tracker) fill(p *Profile, owners map[uint64]Who, stacks map[int][]place, names map[place]string, only string) {
	frames := make(map[Frame]int)
	byPlace := make(map[place]int)
	index := func(at place) int {
		i, ok := byPlace[at]
		if ok {
			return i
		}
		f := t.frame(at, names[at])
		if i, ok = frames[f]; !ok {
			i = len(p.Frames)
			frames[f] = i
			p.Frames = append(p.Frames, f)
		}
		byPlace[at] = i
		return i
	}
	alike := make(map[string]int)
	for k, count := range t.counts {
		who := owners[k.group]
		if !strings.HasPrefix(who.ContainerID, only) {
			continue
		}
		who.Pid, who.Comm = k.pid, k.comm
		s := Sample{Who: who, Count: count}
		id := fmt.Appendf(nil, "%d\x00%d\x00%s\x00", k.group, k.pid, k.comm)
		for _, at := range stacks[k.stack] {
			i := index(at)
			s.Stack = append(s.Stack, i)
			id = strconv.AppendInt(append(id, ' '), int64(i), 36)
		}
		if i, ok := alike[string(id)]; ok {
			p.Samples[i].Count += count
			continue
		}
		alike[string(id)] = len(p.Samples)
		p.Samples = append(p.Samples, s)
	}
	slices.SortFunc(p.Samples, func(a, b Sample) int { // the file does not depend on chance
		if a.Count != b.Count {
			return int(b.Count - a.Count)
		}
		if a.Who.Pid != b.Who.Pid {
			return a.Who.Pid - b.Who.Pid
		}
		return slices.Compare(a.Stack, b.Stack)
	})
}

// frame is a place with its name, or that of its file.
func (t *tracker) frame(at place, name string) Frame {
	if at.file == 0 {
		if name == "" {
			name = "[kernel]"
		}
		return Frame{Name: name, Kernel: true}
	}
	f := t.files[at.file]
	file := printable(strings.TrimSuffix(f.path, deleted))
	switch {
	case f.jit:
		file = "[made at run time]"
		if name == "" {
			name = file
		}
	case name != "":
	case strings.HasPrefix(file, "["):
		name = file
	default:
		name = "[" + path.Base(file) + "]"
	}
	return Frame{Name: printable(demangle.Filter(name, demangle.NoParams, demangle.MaxLength(maxDemangled))), File: file}
}

// maxDemangled bounds what a name of C++ or Rust becomes: 2 to this power.
const maxDemangled = 12

// deleted is behind the path of a file that has none any more.
const deleted = " (deleted)"

// Bounds of looking for names: a file may lie on a filesystem that never answers.
const (
	perFile = 2 * time.Second
	maxHung = 3
)

// nameFiles looks for the names of places in files, and in code that was made at
// run time. A file that does not answer in time is left to itself: there is no way
// to take a read back.
func (t *tracker) nameFiles(byFile map[int][]uint64, names map[place]string) (gaps []string) {
	hung := 0
	for _, i := range slices.Sorted(maps.Keys(byFile)) {
		if strings.HasPrefix(t.files[i].path, "[") && !t.files[i].jit {
			continue
		}
		look := t.lookup(t.files[i], byFile[i])
		done := make(chan map[uint64]string, 1)
		go func() {
			// debug/elf is not hardened against files that somebody made on purpose.
			defer func() {
				if recover() != nil {
					done <- nil
				}
			}()
			done <- look()
		}()
		late := time.NewTimer(perFile)
		select {
		case found := <-done:
			for a, name := range found {
				names[place{i, a}] = name
			}
		case <-late.C:
			gaps = append(gaps, fmt.Sprintf("no names from %s: it could not be read in %v", printable(t.files[i].path), perFile))
			if hung++; hung == maxHung {
				return append(gaps, "no names from further programs")
			}
		}
		late.Stop()
	}
	return gaps
}

// lookup is how the names of places in a file are found: it uses nothing that
// others change. What is not found has no name.
func (t *tracker) lookup(f file, at []uint64) func() map[uint64]string {
	procfs := string(t.proc)
	group, ok := t.groups.living(f.group)
	return func() map[uint64]string {
		if f.jit {
			return perfMap(t.proc.NSpid, procfs, f.pid, at)
		}
		var others []int
		if ok && isContainer(group.Path) {
			others, _ = group.Procs() // none: it is gone
		} else {
			others = []int{os.Getpid()}
		}
		program, err := openProgram(procfs, f, others)
		if err != nil {
			return nil
		}
		defer program.Close()
		found, err := symbol.ELF(program, at)
		if err != nil {
			return nil // a script, a picture: nothing with names
		}
		return found
	}
}

// maxOthers is in how many processes of a container a file is looked for.
const maxOthers = 8

// openProgram opens a file by who has it mapped, or by its path in the container.
func openProgram(procfs string, f file, others []int) (*os.File, error) {
	for _, h := range f.holders {
		if program, err := symbol.OpenMapped(procfs, h.pid, h.begin, h.end); err == nil {
			return program, nil
		}
	}
	if strings.HasSuffix(f.path, deleted) {
		return nil, fs.ErrNotExist
	}
	for _, h := range f.holders {
		if program, err := symbol.OpenIn(procfs, h.pid, f.path); err == nil {
			return program, nil
		}
	}
	for _, pid := range others[:min(len(others), maxOthers)] {
		if program, err := symbol.OpenIn(procfs, pid, f.path); err == nil {
			return program, nil
		}
	}
	return nil, fs.ErrNotExist
}

// perfMap reads the map of a process, which it names by the pid that it has in its
// own namespace.
func perfMap(nspid func(int) ([]int, error), procfs string, pid int, at []uint64) map[uint64]string {
	pids, err := nspid(pid)
	if err != nil {
		return nil
	}
	f, err := symbol.OpenIn(procfs, pid, fmt.Sprintf("/tmp/perf-%d.map", pids[len(pids)-1]))
	if err != nil {
		return nil
	}
	defer f.Close()
	found, _ := symbol.PerfMap(f, at) // what comes before an error counts
	return found
}

// living is the group of an id, as a directory.
func (g *groups) living(id uint64) (cgroup.Group, bool) {
	m, ok := g.hierarchy()
	p := g.path(id)
	if !ok || p == "" {
		return cgroup.Group{}, false
	}
	return cgroup.Group{Point: m.Point, Path: strings.TrimPrefix(p, strings.TrimSuffix(m.Root, "/")), V2: m.V2, Controllers: m.Controllers}, true
}
