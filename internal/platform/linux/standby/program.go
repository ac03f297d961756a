package standby

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// UnmapProgram removes this program's code and constants from the process's page tables
// (MADV_DONTNEED, madvise(2)). The pages stay in the page cache, and a page that is needed
// again takes a minor fault. The kernel maps 16 pages at each fault, so a process maps most
// of its file within minutes of its start, and memory that is mapped by code is what the
// kernel reclaims last. Locked mappings stay. Any goroutine may call it.
func UnmapProgram() error {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	for _, r := range programRanges(string(smaps)) {
		// A page that was written is not in the file: a linker's relocations are such pages.
		if r.written || r.locked {
			continue
		}
		if _, _, err := unix.Syscall(unix.SYS_MADVISE, uintptr(r.from), uintptr(r.to-r.from), unix.MADV_DONTNEED); err != 0 {
			return fmt.Errorf("madvise: %w", err)
		}
	}
	return nil
}

// addresses is a range of addresses of a program.
type addresses struct {
	from, to uint64
	written  bool // it has pages that differ from the file; only in smaps
	locked   bool // mlock(2); only in smaps
}

// programRanges returns the address ranges of a program's code and constants in
// /proc/self/maps or smaps (proc_pid_maps(5), proc_pid_smaps(5)): the read-only mappings of
// the same file as the first mapping, which is the executable.
//
//	00400000-00f43000 r-xp 00000000 fe:00 247741    /usr/bin/holdfast
//	Anonymous:             0 kB
//	VmFlags: rd ex mr mw me
func programRanges(maps string) []addresses {
	var ranges []addresses
	program := ""
	ours := false // the lines are those of the last range
	for line := range strings.Lines(maps) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		switch {
		case ours && f[0] == "Anonymous:":
			ranges[len(ranges)-1].written = f[1] != "0"
		case ours && f[0] == "VmFlags:":
			ranges[len(ranges)-1].locked = strings.Contains(line, " lo")
		}
		from, to, isRange := strings.Cut(f[0], "-")
		if !isRange {
			continue
		}
		ours = false
		if len(f) < 6 || f[4] == "0" {
			continue
		}
		if program == "" {
			program = f[3] + " " + f[4]
		}
		a, err1 := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		if err1 == nil && err2 == nil && f[3]+" "+f[4] == program && strings.HasPrefix(f[1], "r") && f[1][1] != 'w' {
			ranges, ours = append(ranges, addresses{from: a, to: b}), true
		}
	}
	return ranges
}
