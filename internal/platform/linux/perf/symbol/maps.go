package symbol

import (
	"bytes"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"holdfast/internal/platform/linux/kfile"
)

// Mapping is a mapping of code in a process.
type Mapping struct {
	Begin, End uint64 // addresses
	Offset     uint64 // in the file
	Dev        uint64 // major << 32 | minor
	Inode      uint64
	Path       string // as the process sees it; "" or "[vdso]" and the like without a file
}

// Bounds of a process's mappings: some processes have tens of thousands, few of which
// are code.
const (
	maxMaps     = 16 << 20
	maxMappings = 20_000
)

// Mappings reads the code mappings of a process below the procfs, by address.
func Mappings(procfs string, pid int) ([]Mapping, error) {
	b, err := kfile.Read(procfs+"/"+strconv.Itoa(pid)+"/maps", maxMaps)
	if err != nil {
		return nil, err
	}
	return parseMaps(b)
}

// parseMaps reads lines like (proc_pid_maps(5))
//
//	7f0e4a000000-7f0e4a021000 r-xp 00026000 fe:01 1573 /usr/lib/libc.so.6
func parseMaps(b []byte) ([]Mapping, error) {
	var ms []Mapping
	for line := range bytes.Lines(b) {
		// Most lines are data mappings, which are skipped.
		rights := bytes.IndexByte(line, ' ') + 1
		if rights == 0 || len(line) < rights+4 {
			return ms, fmt.Errorf("maps: unexpected line %q", line)
		}
		if line[rights+2] != 'x' {
			continue
		}
		text := strings.TrimSuffix(string(line), "\n")
		if len(ms) == maxMappings {
			return ms, nil
		}
		var m Mapping
		var major, minor uint64
		if _, err := fmt.Sscanf(text, "%x-%x %s %x %x:%x %d", &m.Begin, &m.End, new(string), &m.Offset, &major, &minor, &m.Inode); err != nil {
			return ms, fmt.Errorf("maps: unexpected line %q", text)
		}
		m.Dev = major<<32 | minor
		path := text // the text after the fifth field, which may hold spaces
		for range 5 {
			_, path, _ = strings.Cut(strings.TrimLeft(path, " "), " ")
		}
		m.Path = strings.ReplaceAll(strings.TrimLeft(path, " "), `\012`, "\n")
		ms = append(ms, m)
	}
	return ms, nil
}

// Find returns the index of the mapping of an address. The mappings are sorted by address,
// as those of a process are.
func Find(ms []Mapping, addr uint64) (int, bool) {
	i := sort.Search(len(ms), func(i int) bool { return ms[i].End > addr })
	return i, i < len(ms) && ms[i].Begin <= addr
}
