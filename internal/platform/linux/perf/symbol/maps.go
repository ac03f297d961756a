package symbol

import (
	"bytes"
	"fmt"
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
		f := strings.Fields(text)
		if len(f) < 5 {
			return ms, fmt.Errorf("maps: unexpected line %q", text)
		}
		if len(ms) == maxMappings {
			return ms, nil
		}
		var m Mapping
		begin, end, _ := strings.Cut(f[0], "-")
		major, minor, _ := strings.Cut(f[3], ":")
		var dev [2]uint64
		for _, n := range []struct {
			to   *uint64
			text string
			base int
		}{{&m.Begin, begin, 16}, {&m.End, end, 16}, {&m.Offset, f[2], 16}, {&dev[0], major, 16}, {&dev[1], minor, 16}, {&m.Inode, f[4], 10}} {
			v, err := strconv.ParseUint(n.text, n.base, 64)
			if err != nil {
				return ms, fmt.Errorf("maps: unexpected line %q", text)
			}
			*n.to = v
		}
		m.Dev = dev[0]<<32 | dev[1]
		if len(f) > 5 { // the path may hold spaces
			m.Path = strings.ReplaceAll(text[fifthEnd(text):], `\012`, "\n")
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// fifthEnd is the offset of the text after the fifth field.
func fifthEnd(text string) int {
	at := 0
	for range 5 {
		at += len(text[at:]) - len(strings.TrimLeft(text[at:], " "))
		if space := strings.IndexByte(text[at:], ' '); space >= 0 {
			at += space
		}
	}
	return at + len(text[at:]) - len(strings.TrimLeft(text[at:], " "))
}
