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
type nearest[T any] struct {
	want  wanted
	found []candidate[T]
}

type candidate[T any] struct {
	begin uint64
	known bool
	what  T
}

func newNearest[T any](want wanted) *nearest[T] {
	return &nearest[T]{want: want, found: make([]candidate[T], len(want))}
}

// offer takes a function's address, and returns where to store the function, or nil
// if a nearer one is known. Of functions with the same address the first counts. Only
// the first wanted address after it stores it; settle gives it to the others.
func (n *nearest[T]) offer(begin uint64) *T {
	i := n.want.from(begin)
	if i == len(n.want) {
		return nil
	}
	c := &n.found[i]
	if c.known && c.begin >= begin {
		return nil
	}
	c.begin, c.known = begin, true
	return &c.what
}

// settle returns the nearest function of each address, in the order of want, if one
// is known.
func (n *nearest[T]) settle() []candidate[T] {
	for i := 1; i < len(n.found); i++ {
		if before := n.found[i-1]; before.known && (!n.found[i].known || before.begin > n.found[i].begin) {
			n.found[i] = before
		}
	}
	return n.found
}
