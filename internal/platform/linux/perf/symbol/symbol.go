// Package symbol gives addresses in stacks the names of functions: the kernel's by
// /proc/kallsyms, those of programs by their ELF files (symbol tables, or the table
// that every Go program has), and those of code made at run time by perf maps.
//
// What it reads belongs in part to processes that nobody trusts. Files are opened
// within the process's root, only regular ones, and all that is read is bounded.
package symbol

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName bounds a name in bytes. Those of C++ can be long.
const maxName = 1024

// clean makes a name of somebody's file printable and bounded.
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

// wanted are addresses that names are looked for, sorted and each once.
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

// offer is told of a function, and returns where to note what it is: nil where
// something nearer is known. Of those that begin at one address the first counts.
// Only the first address behind it notes it; settle tells the others.
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

// settle returns the nearest of each, in the order of want. What is not known has
// none.
func (n *nearest[T]) settle() []candidate[T] {
	for i := 1; i < len(n.found); i++ {
		if before := n.found[i-1]; before.known && (!n.found[i].known || before.begin > n.found[i].begin) {
			n.found[i] = before
		}
	}
	return n.found
}
