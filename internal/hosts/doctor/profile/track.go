package profile

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/perf"
	"holdfast/internal/platform/linux/perf/symbol"
	"holdfast/internal/platform/linux/perf/unwind"
	"holdfast/internal/platform/linux/proc"
)

// Bounds of a recording.
const (
	maxSamples   = 50_000 // distinct samples; further ones keep their task and lose their stack
	maxFiles     = 20_000
	maxProcesses = 200_000
	maxHolders   = 4
)

// tracker counts samples as they arrive. It tracks the processes and their mappings, so
// that it can turn an address into a place in a file at once. A process may have ended
// when the names are resolved, but its file usually still exists.
type tracker struct {
	proc    proc.FS
	groups  *groups
	wanted  func(group string) bool // whose samples count; nil: all
	procs   map[int]*process
	comms   map[int]string // by thread
	ended   []int          // threads of the last batch
	ending  []int          // threads of the current batch
	files   []file         // 0 is the kernel
	fileIDs map[fileKey]int
	stacks  map[string]int // encoded places → index
	places  []string       // the same, by index
	counts  map[key]int64
	lost    uint64
	dropped uint64
	scratch []byte
	walker  unwind.Walker
	tables  unwind.Tables[int] // by index of the file
}

// process is the state of a pid.
type process struct {
	maps  []symbol.Mapping // of code, by address; not changed in place
	files []int            // of maps, as indices of tracker.files; 0: not known, nil: none is
	whole bool             // maps are complete: by procfs and by the kernel's events since
	asked bool             // procfs has been read
	lost  uint64           // number of lost events when procfs was read
	group uint64           // by procfs, if the kernel's id does not identify it; 0: not read
}

// file is the source of code.
type file struct {
	path    string
	jit     bool     // code generated at run time by the process pid
	pid     int      // of a jit
	group   uint64   // of the first process that was seen with it
	holders []holder // processes that have it mapped, the last first
}

type holder struct {
	pid        int
	begin, end uint64
}

type fileKey struct {
	path       string
	dev, inode uint64
	pid        int    // of a jit
	group      uint64 // of a mapping without a file on a disk
}

// key distinguishes samples.
type key struct {
	stack int
	pid   int
	group uint64
	comm  string
}

// place is a frame without its name.
type place struct {
	file int
	at   uint64 // address, or offset in the file
}

func newTracker(p proc.FS, g *groups) *tracker {
	return &tracker{proc: p, groups: g, procs: make(map[int]*process), comms: make(map[int]string), files: make([]file, 1),
		fileIDs: make(map[fileKey]int), stacks: make(map[string]int), counts: make(map[key]int64)}
}

// read processes the available records.
func (t *tracker) read(s *perf.Sampler) error {
	for _, tid := range t.ended { // the last samples of these threads have been read
		delete(t.comms, tid)
		delete(t.procs, tid)
	}
	t.ended, t.ending = t.ending, t.ended[:0]
	return s.Read(t.record)
}

func (t *tracker) record(r *perf.Record) {
	switch r.Kind {
	case perf.Sample:
		t.sample(r)
	case perf.Command:
		if r.Tid <= 0 || len(t.comms) >= maxProcesses {
			return
		}
		t.comms[r.Tid] = printable(r.Name)
		if r.Exec {
			t.procs[r.Pid] = &process{whole: true, lost: t.lost, group: t.groupOf(r.Pid)}
		}
	case perf.Mapping:
		if p := t.process(r.Pid); p != nil && p.whole {
			p.insert(symbol.Mapping{Begin: r.Addr, End: r.Addr + r.Len, Offset: r.Offset, Dev: r.Dev, Inode: r.Inode, Path: r.Name})
		}
	case perf.Fork:
		t.fork(r)
	case perf.Exit:
		t.ending = append(t.ending, r.Tid)
	case perf.Group:
		t.groups.add(r.Cgroup, r.Name)
	case perf.Lost:
		t.lost += r.Count
	}
}

// fork copies the parent's state to a new thread or process.
func (t *tracker) fork(r *perf.Record) {
	if r.Tid <= 0 || len(t.comms) >= maxProcesses {
		return
	}
	if c := t.comm(r.Parent, r.ParentTid); c != "" {
		t.comms[r.Tid] = c
	}
	if parent := t.procs[r.Parent]; parent != nil && r.Pid != r.Parent {
		child := *parent
		t.procs[r.Pid] = &child
	}
}

// process returns the state of a pid, nil for a process that is not visible.
func (t *tracker) process(pid int) *process {
	if pid <= 0 {
		return nil
	}
	p := t.procs[pid]
	if p == nil && len(t.procs) < maxProcesses {
		p = &process{}
		t.procs[pid] = p
	}
	return p
}

func (t *tracker) groupOf(pid int) uint64 {
	if p := t.procs[pid]; p != nil {
		return p.group
	}
	return 0
}

// comm returns the name of a thread. For a thread from before the recording it reads
// procfs.
func (t *tracker) comm(pid, tid int) string {
	if tid <= 0 {
		return ""
	}
	c, ok := t.comms[tid]
	if !ok && len(t.comms) < maxProcesses {
		b, err := kfile.Read(string(t.proc)+"/"+strconv.Itoa(pid)+"/task/"+strconv.Itoa(tid)+"/comm", 64)
		if err == nil {
			c = printable(strings.TrimSuffix(string(b), "\n"))
		}
		t.comms[tid] = c // the thread has ended and its name is unknown
	}
	return c
}

// sample counts a sample.
func (t *tracker) sample(r *perf.Record) {
	p := t.process(r.Pid)
	group := r.Cgroup
	if t.groups.isRoot(group) && p != nil {
		if p.group == 0 {
			p.group = t.groups.of(t.proc, r.Pid)
		}
		if p.group != 0 {
			group = p.group
		}
	}
	if t.wanted != nil && !t.wanted(t.groups.path(group)) {
		return
	}
	t.scratch = t.scratch[:0]
	for _, a := range t.calls(p, r, group) {
		at, ok := t.place(p, r.Pid, group, a)
		if !ok { // not code: the rest of the stack is unreliable
			break
		}
		t.scratch = appendPlace(t.scratch, at)
	}
	user := len(t.scratch)
	for _, a := range r.Kernel {
		t.scratch = appendPlace(t.scratch, place{0, a})
	}
	// The kernel's frames are inside the user's.
	t.scratch = append(t.scratch, t.scratch[:user]...)
	k := key{pid: max(r.Pid, 0), group: group, comm: t.comm(r.Pid, r.Tid)}
	stack, known := t.stacks[string(t.scratch[user:])]
	k.stack = stack
	if _, counted := t.counts[k]; !known || !counted {
		if len(t.counts) >= maxSamples {
			t.dropped++
			k = key{stack: t.intern(nil), group: group}
		} else if !known {
			k.stack = t.intern(t.scratch[user:])
		}
	}
	t.counts[k]++
}

// forget drops what was counted of control groups that turned out to be others.
func (t *tracker) forget() {
	if t.wanted != nil {
		maps.DeleteFunc(t.counts, func(k key, _ int64) bool { return !t.wanted(t.groups.path(k.group)) })
		if len(t.counts) == 0 { // a long wait would collect stacks of others
			clear(t.stacks)
			t.places = nil
		}
	}
}

const placeSize = 12

func appendPlace(b []byte, p place) []byte {
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint32(b, uint32(p.file)), p.at)
}

// decodePlaces is the inverse of appendPlace.
func decodePlaces(s string) []place {
	b := []byte(s)
	ps := make([]place, 0, len(b)/placeSize)
	for ; len(b) >= placeSize; b = b[placeSize:] {
		ps = append(ps, place{int(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint64(b[4:])})
	}
	return ps
}

func (t *tracker) intern(stack []byte) int {
	i, ok := t.stacks[string(stack)]
	if !ok {
		i = len(t.places)
		t.places = append(t.places, string(stack))
		t.stacks[t.places[i]] = i
	}
	return i
}

// place returns the file that contains a user address.
func (t *tracker) place(p *process, pid int, group, addr uint64) (place, bool) {
	if p == nil {
		return place{}, false
	}
	i, ok := symbol.Find(p.maps, addr)
	if !ok && (!p.whole && !p.asked || p.lost < t.lost) { // the process is older than the recording, or an event was lost
		p.asked, p.lost = true, t.lost
		if ms, err := symbol.Mappings(string(t.proc), pid); err == nil && len(ms) > 0 {
			p.maps, p.files, p.whole = ms, nil, true
			i, ok = symbol.Find(p.maps, addr)
		}
	}
	if !ok {
		return place{}, false
	}
	m, f := &p.maps[i], t.fileOf(p, i, pid, group)
	t.files[f].hold(holder{pid, m.Begin, m.End})
	if t.files[f].jit {
		return place{f, addr}, true
	}
	return place{f, addr - m.Begin + m.Offset}, true
}

// fileOf returns the index of the file of p's mapping i. It remembers the index, unless that
// depends on the control group.
func (t *tracker) fileOf(p *process, i, pid int, group uint64) int {
	if p.files == nil {
		p.files = make([]int, len(p.maps))
	}
	if p.files[i] != 0 {
		return p.files[i]
	}
	f := t.file(p.maps[i], pid, group)
	if p.maps[i].Inode != 0 {
		p.files[i] = f
	}
	return f
}

// file returns the index of a mapping's file.
func (t *tracker) file(m symbol.Mapping, pid int, group uint64) int {
	k := fileKey{path: m.Path, dev: m.Dev, inode: m.Inode}
	made := isGenerated(m.Path)
	switch {
	case made:
		k = fileKey{pid: pid}
	case m.Inode == 0: // [vdso]; also some overlays
		k.group = group
	}
	i, ok := t.fileIDs[k]
	if !ok && len(t.files) >= maxFiles {
		k = fileKey{path: "[other]"} // stands for those beyond the bound
		m.Path, made = k.path, false
		i, ok = t.fileIDs[k]
	}
	if !ok {
		i = len(t.files)
		t.fileIDs[k] = i
		t.files = append(t.files, file{path: m.Path, jit: made, pid: k.pid, group: group})
	}
	return i
}

// hold remembers a process that has the file mapped. Those seen last are kept.
func (f *file) hold(h holder) {
	if !slices.Contains(f.holders, h) {
		f.holders = append([]holder{h}, f.holders[:min(len(f.holders), maxHolders-1)]...)
	}
}

// isGenerated reports whether a mapping is code generated at run time.
func isGenerated(path string) bool {
	return path == "" || strings.HasPrefix(path, "//anon") || strings.HasPrefix(path, "/memfd:") || strings.HasPrefix(path, "/dev/zero") ||
		strings.HasPrefix(path, "[anon") || path == "[heap]" || path == "[stack]"
}

func isContainer(group string) bool { return fact.ContainerID(group) != "" }

// maxMapped bounds the code mappings of a process.
const maxMapped = 20_000

// insert adds a mapping and removes what it covers.
func (p *process) insert(m symbol.Mapping) {
	if m.End <= m.Begin || len(p.maps) >= maxMapped {
		return
	}
	kept := make([]symbol.Mapping, 0, len(p.maps)+2)
	at := 0
	for _, o := range p.maps {
		if o.Begin < m.Begin { // the whole mapping, or its part before m
			before := o
			before.End = min(o.End, m.Begin)
			kept = append(kept, before)
			at = len(kept)
		}
		if o.End > m.End {
			after := o
			after.Begin = max(o.Begin, m.End)
			after.Offset += after.Begin - o.Begin
			kept = append(kept, after)
		}
	}
	p.maps, p.files = slices.Insert(kept, at, m), nil
}
