package profile

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/perf/elffile"
	"holdfast/internal/platform/linux/perf/symbol"
)

// assembly resolves the names of a recording. Each place has a number.
type assembly struct {
	*tracker
	only   string // the beginning of the id of the container to keep
	owners map[uint64]Task
	ids    map[place]int
	places []place
	names  []string
	stacks map[int][]int
}

// assemble resolves the names of what was counted, and returns what it could not resolve.
// It keeps the container whose id begins with only.
func (t *tracker) assemble(p *Profile, n *names, only string) (gaps []string) {
	a := &assembly{tracker: t, only: only, owners: make(map[uint64]Task), ids: make(map[place]int), stacks: make(map[int][]int)}
	for k := range t.counts {
		task, ok := a.owners[k.group]
		if !ok {
			task = n.task(t.groups.path(k.group))
			a.owners[k.group] = task
		}
		if a.keeps(task) && a.stacks[k.stack] == nil {
			a.stacks[k.stack] = a.number(decodePlaces(t.places[k.stack]))
		}
	}
	a.names = make([]string, len(a.places))
	byFile := make(map[int][]int)
	var kernel []uint64
	for id, at := range a.places {
		byFile[at.file] = append(byFile[at.file], id)
		if at.file == 0 {
			kernel = append(kernel, at.at)
		}
	}
	names, err := symbol.Kernel(string(t.proc), kernel)
	if err != nil {
		gaps = append(gaps, "functions of the kernel have no names: "+err.Error())
	}
	for _, id := range byFile[0] {
		a.names[id] = names[a.places[id].at]
	}
	delete(byFile, 0)
	gaps = append(gaps, a.nameFiles(byFile)...)
	a.fill(p)
	return gaps
}

func (a *assembly) keeps(w Task) bool { return strings.HasPrefix(w.ContainerID, a.only) }

// number returns the numbers of places.
func (a *assembly) number(stack []place) []int {
	ids := make([]int, len(stack))
	for i, at := range stack {
		id, ok := a.ids[at]
		if !ok {
			id = len(a.places)
			a.ids[at] = id
			a.places = append(a.places, at)
		}
		ids[i] = id
	}
	return ids
}

// fill creates the samples and merges equal ones.
func (a *assembly) fill(p *Profile) {
	known := make(map[Frame]int)
	frames := make([]int, len(a.places)) // by place
	for id, at := range a.places {
		f := a.frame(at, a.names[id])
		i, ok := known[f]
		if !ok {
			i = len(p.Frames)
			known[f] = i
			p.Frames = append(p.Frames, f)
		}
		frames[id] = i
	}
	alike := make(map[string]int)
	var id []byte
	for k, count := range a.counts {
		task := a.owners[k.group]
		if !a.keeps(task) {
			continue
		}
		task.Pid, task.Comm = k.pid, k.comm
		s := Sample{Task: task, Count: count, Stack: make([]int, len(a.stacks[k.stack]))}
		id = append(binary.AppendUvarint(binary.AppendUvarint(id[:0], k.group), uint64(k.pid)), k.comm...)
		id = append(id, 0)
		for i, at := range a.stacks[k.stack] {
			s.Stack[i] = frames[at]
			id = binary.AppendUvarint(id, uint64(frames[at]))
		}
		if i, ok := alike[string(id)]; ok {
			p.Samples[i].Count += count
			continue
		}
		alike[string(id)] = len(p.Samples)
		p.Samples = append(p.Samples, s)
	}
	sort.Slice(p.Samples, func(i, j int) bool { // the order of the file is deterministic
		a, b := &p.Samples[i], &p.Samples[j]
		return cmp.Or(cmp.Compare(b.Count, a.Count), a.Task.Pid-b.Task.Pid, slices.Compare(a.Stack, b.Stack)) < 0
	})
}

// frame returns a place with its name, or with that of its file.
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
	return Frame{Name: printable(symbol.Demangle(name, maxDemangled)), File: file}
}

// maxDemangled bounds the length of a demangled C++ or Rust name: 2 to this power.
const maxDemangled = 12

// deleted is the suffix of the path of a deleted file.
const deleted = " (deleted)"

// Bounds of resolving names: a file may be on a file system that does not respond.
const (
	perFile = 2 * time.Second
	maxHung = 3
)

// nameFiles resolves the names of places in files, and in code generated at run time. It
// gives up on a file that does not respond in time.
func (a *assembly) nameFiles(byFile map[int][]int) (gaps []string) {
	hung := 0
	for _, i := range slices.Sorted(maps.Keys(byFile)) {
		f := a.files[i]
		if strings.HasPrefix(f.path, "[") && !f.jit && f.path != symbol.VDSO {
			continue
		}
		at := make([]uint64, len(byFile[i]))
		for j, id := range byFile[i] {
			at[j] = a.places[id].at
		}
		found, inTime := elffile.Bounded(perFile, a.lookup(f, at))
		if !inTime {
			gaps = append(gaps, fmt.Sprintf("no names from %s: it could not be read in %v", printable(f.path), perFile))
			if hung++; hung == maxHung {
				return append(gaps, "no names from further programs")
			}
			continue
		}
		for _, id := range byFile[i] {
			a.names[id] = found[a.places[id].at]
		}
	}
	return gaps
}

// lookup returns the func that resolves places in a file. The func uses no data that
// others change. Places that it does not find have no name.
func (t *tracker) lookup(f file, at []uint64) func() map[uint64]string {
	procfs := string(t.proc)
	group, ok := t.groups.living(f.group)
	return func() map[uint64]string {
		if f.jit {
			return symbol.JITNames(t.proc.NSpid, procfs, f.pid, at)
		}
		var others []int
		if ok && isContainer(group.Path) {
			others, _ = group.Procs() // none if the group has been removed
		} else {
			others = []int{os.Getpid()}
		}
		program, err := openProgram(procfs, f, others)
		if err != nil {
			return nil
		}
		defer program.Close()
		found, err := symbol.ELF(program, symbol.Program{Path: f.path, Open: func(name string) (*os.File, error) {
			return openInAny(procfs, name, f, others)
		}}, at)
		if err != nil {
			return nil // not an ELF file, such as a script
		}
		return found
	}
}

// maxOthers is the number of processes of a container in which a file is searched.
const maxOthers = 8

// openProgram opens a file through a process that has it mapped, or by its path in the
// container.
func openProgram(procfs string, f file, others []int) (symbol.File, error) {
	if f.path == symbol.VDSO {
		return symbol.OpenVDSO()
	}
	for _, h := range f.holders {
		if program, err := symbol.OpenMapped(procfs, h.pid, h.begin, h.end); err == nil {
			return program, nil
		}
	}
	if strings.HasSuffix(f.path, deleted) {
		return nil, fs.ErrNotExist
	}
	return openInAny(procfs, f.path, f, others)
}

// openInAny opens a file by its path in the root of a process that has the program f
// mapped, or of another one of its container.
func openInAny(procfs, name string, f file, others []int) (*os.File, error) {
	for _, h := range f.holders {
		if program, err := symbol.OpenIn(procfs, h.pid, name); err == nil {
			return program, nil
		}
	}
	for _, pid := range others[:min(len(others), maxOthers)] {
		if program, err := symbol.OpenIn(procfs, pid, name); err == nil {
			return program, nil
		}
	}
	return nil, fs.ErrNotExist
}

// living returns the group of an id as a directory.
func (g *groups) living(id uint64) (cgroup.Group, bool) {
	m, ok := g.hierarchy()
	p := g.path(id)
	if !ok || p == "" {
		return cgroup.Group{}, false
	}
	return m.Group(strings.TrimPrefix(p, strings.TrimSuffix(m.Root, "/"))), true
}
