package tracepoint

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ErrHidden means that the kernel hides its addresses from unprivileged processes
// (kernel.kptr_restrict, Documentation/admin-guide/sysctl/kernel.rst).
var ErrHidden = errors.New("the kernel hides its addresses")

// Symbols are the kernel's functions and variables by address. It may be used
// from any goroutine.
type Symbols struct {
	sorted    []symbol          // functions, by address
	names     string            // of the functions, each with a newline
	variables map[string]uint64 // addresses
}

// symbol is a function. A kernel has a hundred thousand of them, so none has a string of
// its own.
type symbol struct {
	addr uint64
	name uint32 // where its name begins
}

// LoadSymbols reads /proc/kallsyms below the procfs. Of variables it keeps only the
// given ones.
func LoadSymbols(procfs string, variables ...string) (*Symbols, error) {
	f, err := os.Open(procfs + "/kallsyms")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ParseSymbols(f, variables...)
}

// maxSymbols is ten times the number of symbols of a kernel with all its modules.
const maxSymbols = 2_000_000

// ParseSymbols reads lines like "ffffffff8159a2b0 T generic_fadvise". ErrHidden.
func ParseSymbols(r io.Reader, variables ...string) (*Symbols, error) {
	s := &Symbols{variables: make(map[string]uint64)}
	var names strings.Builder
	lines := bufio.NewScanner(r)
	known := false
	for n := 0; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		if len(f) < 3 || n > maxSymbols {
			return nil, fmt.Errorf("kallsyms: unexpected line %q", lines.Text())
		}
		addr, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("kallsyms: %w", err)
		}
		if addr == 0 {
			continue
		}
		known = true
		if slices.Contains(variables, f[2]) {
			s.variables[strings.Clone(f[2])] = addr
		}
		if strings.ContainsAny(f[1], "tTwW") && names.Len() < math.MaxUint32 {
			s.sorted = append(s.sorted, symbol{addr, uint32(names.Len())})
			names.WriteString(f[2])
			names.WriteByte('\n')
		}
	}
	s.names = names.String()
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("kallsyms: %w", err)
	}
	if !known {
		return nil, ErrHidden
	}
	slices.SortStableFunc(s.sorted, func(a, b symbol) int { return cmp.Compare(a.addr, b.addr) })
	return s, nil
}

// Addr is the address of a variable, or of a function. It reads the names of all functions.
func (s *Symbols) Addr(name string) (uint64, bool) {
	if a, ok := s.variables[name]; ok {
		return a, true
	}
	for _, f := range s.sorted {
		if s.name(f) == name {
			return f.addr, true
		}
	}
	return 0, false
}

// Address reads the address of a function from /proc/kallsyms below the procfs. It reads up
// to the line of the function, and keeps nothing, so it costs less than LoadSymbols.
// ErrHidden.
func Address(procfs, function string) (uint64, error) {
	f, err := os.Open(procfs + "/kallsyms")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	end := []byte(" " + function)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if !bytes.HasSuffix(lines.Bytes(), end) {
			continue
		}
		text, _, _ := strings.Cut(lines.Text(), " ")
		addr, err := strconv.ParseUint(text, 16, 64)
		switch {
		case err != nil:
			return 0, fmt.Errorf("kallsyms: %w", err)
		case addr == 0:
			return 0, ErrHidden
		}
		return addr, nil
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("kallsyms: %w", err)
	}
	return 0, fmt.Errorf("the kernel has no %s", function)
}

// name is the name of a function.
func (s *Symbols) name(f symbol) string {
	name, _, _ := strings.Cut(s.names[f.name:], "\n")
	return name
}

// maxFunction is longer than any function of the kernel: an address further behind
// the last known function is in none.
const maxFunction = 1 << 20

// Name is the function of an address, or "". Of functions with the same address the
// first in the list counts.
func (s *Symbols) Name(addr uint64) string {
	i, exact := slices.BinarySearchFunc(s.sorted, addr, func(x symbol, a uint64) int { return cmp.Compare(x.addr, a) })
	if !exact {
		i--
	}
	if i < 0 || addr-s.sorted[i].addr >= maxFunction {
		return ""
	}
	for i > 0 && s.sorted[i-1].addr == s.sorted[i].addr {
		i--
	}
	return s.name(s.sorted[i])
}

// Path names the functions of a stack, the innermost first, without those of the
// tracing itself.
func (s *Symbols) Path(stack []uint64) []string {
	var names []string
	for _, a := range stack {
		n := s.Name(a)
		// Optimised copies count as the same function: ksys_read.isra.0.
		n, _, _ = strings.Cut(n, ".")
		if n == "" {
			continue
		}
		if ownFrame(n) {
			names = names[:0]
			continue
		}
		names = append(names, n)
	}
	return names
}

// ownFrame reports whether a function belongs to a tracepoint and its program.
func ownFrame(name string) bool {
	for _, p := range []string{"bpf_prog_", "bpf_trace_run", "__bpf_trace_", "__traceiter_", "bpf_get_stackid"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
