package tracepoint

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// types is the kernel's description of its types (Documentation/bpf/btf.rst), and what is missing there.
type types struct {
	spec *btf.Spec
	err  error
}

// loadTypes reads the description from a file, /sys/kernel/btf/vmlinux.
func loadTypes(file string) (*types, error) {
	spec, err := btf.LoadSpec(file)
	if err != nil {
		return nil, fmt.Errorf("the kernel's types: %w", err)
	}
	return &types{spec: spec}, nil
}

// offset returns the offset of a member of a structure, which may be in structures, too.
func (k *types) offset(of string, path ...string) int32 {
	var s *btf.Struct
	if missing := k.spec.TypeByName(of, &s); missing != nil {
		k.err = errors.Join(k.err, missing)
		return 0
	}
	n, ok := offsetOf(s, path)
	if !ok {
		k.err = errors.Join(k.err, fmt.Errorf("the kernel's %s has no %s", of, strings.Join(path, ".")))
	}
	return int32(n)
}

// offsetOf returns the offset of a member of a structure, which may be a structure, too.
func offsetOf(t btf.Type, path []string) (uint32, bool) {
	if len(path) == 0 {
		return 0, true
	}
	for _, m := range members(t) {
		rest := path
		switch m.Name {
		case path[0]:
			rest = path[1:]
		case "": // its members are those of the outer one
		default:
			continue
		}
		if n, ok := offsetOf(m.Type, rest); ok {
			return m.Offset.Bytes() + n, true
		}
	}
	return 0, false
}

func members(t btf.Type) []btf.Member {
	if s, ok := btf.As[*btf.Struct](t); ok {
		return s.Members
	}
	if u, ok := btf.As[*btf.Union](t); ok {
		return u.Members
	}
	return nil
}
