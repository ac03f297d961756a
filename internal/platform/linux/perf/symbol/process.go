package symbol

import (
	"fmt"
	"os"
	"path"
	"strings"
)

// Process names addresses in the memory of a living process, in their order: a
// function, else its file as "[libc.so.6]", else "". nspid returns the pids of a
// process in its namespaces. Process reads the process's own files, which may block:
// the caller bounds the time.
func Process(nspid func(pid int) ([]int, error), procfs string, pid int, addrs []uint64) ([]string, error) {
	ms, err := Mappings(procfs, pid)
	if err != nil {
		return nil, err
	}
	named := make([]string, len(addrs))
	in := make(map[int][]int) // indices of addresses by that of their mapping
	for i, a := range addrs {
		if m, ok := Find(ms, a); ok {
			in[m] = append(in[m], i)
		}
	}
	for at, of := range in {
		m := ms[at]
		names := namesIn(nspid, procfs, pid, m, pick(addrs, of))
		for _, i := range of {
			named[i] = names[addrs[i]]
			if named[i] == "" && strings.HasPrefix(m.Path, "/") {
				named[i] = "[" + clean([]byte(path.Base(strings.TrimSuffix(m.Path, " (deleted)")))) + "]"
			}
		}
	}
	return named, nil
}

func pick(addrs []uint64, of []int) []uint64 {
	picked := make([]uint64, len(of))
	for i, at := range of {
		picked[i] = addrs[at]
	}
	return picked
}

// namesIn names addresses of one mapping, by its file or, without a file, by the
// process's perf map.
func namesIn(nspid func(int) ([]int, error), procfs string, pid int, m Mapping, addrs []uint64) map[uint64]string {
	if m.Path != VDSO && !strings.HasPrefix(m.Path, "/") {
		return JITNames(nspid, procfs, pid, addrs)
	}
	f, err := OpenMapping(procfs, pid, m)
	if err != nil {
		return nil
	}
	defer f.Close()
	offsets := make([]uint64, len(addrs))
	for i, a := range addrs {
		offsets[i] = a - m.Begin + m.Offset
	}
	found, err := ELF(f, Program{m.Path, func(name string) (*os.File, error) { return OpenIn(procfs, pid, name) }}, offsets)
	if err != nil {
		return nil // a file without names
	}
	names := make(map[uint64]string, len(found))
	for i, a := range addrs {
		names[a] = found[offsets[i]]
	}
	return names
}

// JITNames names addresses of code that a process compiled at run time, by its perf
// map. The map's name has the pid in the process's own namespace. It returns nil if
// there is no map.
func JITNames(nspid func(pid int) ([]int, error), procfs string, pid int, addrs []uint64) map[uint64]string {
	pids, err := nspid(pid)
	if err != nil {
		return nil
	}
	f, err := OpenIn(procfs, pid, fmt.Sprintf("/tmp/perf-%d.map", pids[len(pids)-1]))
	if err != nil {
		return nil
	}
	defer f.Close()
	found, _ := PerfMap(f, addrs) // names before an error count
	return found
}
