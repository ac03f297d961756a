package inroot

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
)

// Overflow is the id that stands for ids without a mapping (user_namespaces(7)).
const Overflow = 65534

// Mapping is the mapping of ids of a user namespace to those of this process's one. Ids
// are from 0 to 2³²-2.
type Mapping []extent

type extent struct{ inside, outside, count int }

// readMapping reads a file of user_namespaces(7), "uid_map" or "gid_map". The kernel
// allows 340 lines.
func readMapping(path string) (Mapping, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a mapping of ids: %w", err)
	}
	var m Mapping
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		var e extent
		if _, err := fmt.Sscan(s.Text(), &e.inside, &e.outside, &e.count); err != nil {
			return nil, fmt.Errorf("read a mapping of ids: %s: %q: %w", path, s.Text(), err)
		}
		m = append(m, e)
	}
	return m, nil
}

// Outside returns this process's id for an id of the namespace, and whether there is one.
func (m Mapping) Outside(id int) (int, bool) {
	for _, e := range m {
		if id >= e.inside && id-e.inside < e.count {
			return id - e.inside + e.outside, true
		}
	}
	return 0, false
}

// Inside returns the namespace's id for an id of this process, Overflow if there is none.
func (m Mapping) Inside(id int) int {
	for _, e := range m {
		if id >= e.outside && id-e.outside < e.count {
			return id - e.outside + e.inside
		}
	}
	return Overflow
}
