package elffile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// maxVDSO bounds the vDSO in bytes: it has a few pages.
const maxVDSO = 1 << 20

// VDSO returns the library that the kernel maps into every process ("[vdso]" of
// proc_pid_maps(5)), as an ELF file. It is the same in all 64-bit processes, so it is
// read from this one.
func VDSO() ([]byte, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(maps) {
		if !bytes.HasSuffix(line, []byte("[vdso]\n")) {
			continue
		}
		first, rest, _ := strings.Cut(string(line), "-")
		last, _, _ := strings.Cut(rest, " ")
		begin, err1 := strconv.ParseInt(first, 16, 64)
		end, err2 := strconv.ParseInt(last, 16, 64)
		if err := errors.Join(err1, err2); err != nil || end-begin <= 0 || end-begin > maxVDSO {
			return nil, fmt.Errorf("the vDSO's mapping is not understood: %q", line)
		}
		mem, err := os.Open("/proc/self/mem")
		if err != nil {
			return nil, err
		}
		defer mem.Close()
		return io.ReadAll(io.NewSectionReader(mem, begin, end-begin))
	}
	return nil, errors.New("this process has no vDSO")
}
