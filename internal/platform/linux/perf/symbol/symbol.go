// Package symbol gives addresses in stacks the names of functions: the kernel's by
// /proc/kallsyms, those of programs by their ELF files (symbol tables, or the table
// that every Go program has), and those of code made at run time by perf maps.
//
// Some of its input belongs to untrusted processes. It opens files within the
// process's root, only regular ones, and bounds all reads.
package symbol

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName bounds a name in bytes. Those of C++ can be long.
const maxName = 1024

// clean makes a name from an untrusted file printable and bounds it.
func clean(b []byte) string {
	s := string(b[:min(len(b), maxName)])
	if utf8.ValidString(s) && strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	s = strings.ToValidUTF8(s, "?")
	return strings.Map(func(r rune) rune {
		if unprintable(r) {
			return '?'
		}
		return r
	}, s)
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// wanted are the addresses to name, sorted and unique.
type wanted []uint64

func newWanted(addrs []uint64) wanted {
	w := slices.Clone(addrs)
	slices.Sort(w)
	return slices.Compact(w)
}

// from is the index of the first address that is not below a.
func (w wanted) from(a uint64) int {
	i, _ := slices.BinarySearch(w, a)
	return i
}

// nearest finds for each wanted address the function that begins closest below it,
// out of functions that come in any order and are not kept.
type nearest struct {
	want  wanted
	found []candidate
}

type candidate struct {
	begin uint64
	known bool
	what  function
}

func newNearest(want wanted) *nearest {
	return &nearest{want: want, found: make([]candidate, len(want))}
}

// offer takes a function. Of functions with the same address the first counts. Only the
// first wanted address after the function stores it; settle gives it to the others.
func (n *nearest) offer(begin uint64, what function) {
	i := n.want.from(begin)
	if i < len(n.want) && (!n.found[i].known || n.found[i].begin < begin) {
		n.found[i] = candidate{begin: begin, known: true, what: what}
	}
}

// settle returns the nearest function of each address, in the order of want, if one
// is known.
func (n *nearest) settle() []candidate {
	for i := 1; i < len(n.found); i++ {
		if before := n.found[i-1]; before.known && (!n.found[i].known || before.begin > n.found[i].begin) {
			n.found[i] = before
		}
	}
	return n.found
}
