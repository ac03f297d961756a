package symbol

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrHidden means that the kernel hides its addresses from unprivileged processes
// (kernel.kptr_restrict, Documentation/admin-guide/sysctl/kernel.rst).
var ErrHidden = errors.New("the kernel hides its addresses")

// maxFunction is longer than any function of the kernel: an address further behind
// the last known function is in none.
const maxFunction = 1 << 20

// Kernel names the functions of addresses, without the suffixes of optimised copies
// (ksys_read.isra.0). It uses BPF (Linux 5.13) or else kallsyms below the procfs.
// ErrHidden.
func Kernel(procfs string, addrs []uint64) (map[uint64]string, error) {
	if names, err := askKernel(newWanted(addrs)); err == nil && len(names) > 0 {
		return names, nil
	}
	return listKernel(procfs, addrs)
}

func listKernel(procfs string, addrs []uint64) (map[uint64]string, error) {
	f, err := os.Open(procfs + "/kallsyms")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseKernel(f, addrs)
}

// parseKernel reads lines like "ffffffff8159a2b0 T generic_fadvise", those of modules
// with a tab and the module's name. It keeps only the wanted ones: a kernel has more
// than 100,000.
func parseKernel(r io.Reader, addrs []uint64) (map[uint64]string, error) {
	near := newNearest[[]byte](newWanted(addrs))
	lines := bufio.NewReaderSize(r, 64<<10)
	shown := false
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("kallsyms: %w", err)
		}
		addr, kind, name, ok := cutLine(line)
		if !ok {
			return nil, fmt.Errorf("kallsyms: unexpected line %q", line)
		}
		if addr == 0 || kind != 't' && kind != 'T' && kind != 'w' && kind != 'W' {
			continue
		}
		shown = true
		if to := near.offer(addr); to != nil {
			*to = append((*to)[:0], name...)
		}
	}
	if !shown {
		return nil, ErrHidden
	}
	names := make(map[uint64]string, len(near.want))
	for i, c := range near.settle() {
		if a := near.want[i]; c.known && a-c.begin < maxFunction {
			name, _, _ := bytes.Cut(c.what, []byte{'.'})
			names[a] = clean(name)
		}
	}
	return names, nil
}

// cutLine parses by hand: strings.Fields takes longer than the kernel takes to write
// the file.
func cutLine(line []byte) (addr uint64, kind byte, name []byte, ok bool) {
	first, rest, _ := bytes.Cut(line, []byte{' '})
	addr, ok = hexadecimal(first)
	if !ok || len(rest) < 3 || rest[1] != ' ' {
		return 0, 0, nil, false
	}
	kind, name = rest[0], rest[2:]
	if end := bytes.IndexAny(name, "\t \n"); end >= 0 {
		name = name[:end]
	}
	return addr, kind, name, len(name) > 0
}
