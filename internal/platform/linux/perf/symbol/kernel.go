package symbol

import (
	"io"
	"os"
	"strings"

	"holdfast/internal/platform/linux/tracepoint"
)

// Kernel names the functions of addresses, without the suffixes of optimised copies
// (ksys_read.isra.0). It uses BPF (Linux 5.13) or else kallsyms below the procfs.
// tracepoint.ErrHidden.
func Kernel(procfs string, addrs []uint64) (map[uint64]string, error) {
	if names, err := lookUpKernel(newWanted(addrs)); err == nil && len(names) > 0 {
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

func parseKernel(r io.Reader, addrs []uint64) (map[uint64]string, error) {
	symbols, err := tracepoint.ParseSymbols(r)
	if err != nil {
		return nil, err
	}
	names := make(map[uint64]string, len(addrs))
	for _, a := range addrs {
		if name, _, _ := strings.Cut(symbols.Name(a), "."); name != "" {
			names[a] = clean([]byte(name))
		}
	}
	return names, nil
}
