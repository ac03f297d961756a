package symbol

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxPerfMap bounds a perf map in bytes.
const maxPerfMap = 256 << 20

// PerfMap names addresses by the map that a runtime with a JIT compiler writes (Java
// with an agent, Node.js with --perf-basic-prof, .NET with DOTNET_PerfMapEnabled):
// lines of begin, size, both hexadecimal, and name
// (tools/perf/Documentation/jit-interface.txt). Of two entries with an address the
// later one counts: the code was compiled again.
func PerfMap(r io.Reader, addrs []uint64) (map[uint64]string, error) {
	want := newWanted(addrs)
	names := make(map[uint64]string)
	lines := bufio.NewReaderSize(io.LimitReader(r, maxPerfMap), 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			line = bytes.Clone(line) // the buffer is reused for the rest of the line
		}
		for err == bufio.ErrBufferFull {
			_, err = lines.ReadSlice('\n')
		}
		begin, size, name := cutEntry(line)
		for i := want.from(begin); size > 0 && i < len(want) && want[i]-begin < size; i++ {
			names[want[i]] = clean(name)
		}
		switch {
		case errors.Is(err, io.EOF):
			return names, nil
		case err != nil:
			return names, fmt.Errorf("read a perf map: %w", err)
		}
	}
}

// cutEntry parses a line; the size is 0 if it is not an entry.
func cutEntry(line []byte) (begin, size uint64, name []byte) {
	first, rest, ok1 := bytes.Cut(line, []byte{' '})
	second, name, ok2 := bytes.Cut(rest, []byte{' '})
	begin, err1 := strconv.ParseUint(string(bytes.TrimPrefix(first, []byte("0x"))), 16, 64)
	size, err2 := strconv.ParseUint(string(bytes.TrimPrefix(second, []byte("0x"))), 16, 64)
	name = bytes.TrimRight(name, "\r\n")
	if !ok1 || !ok2 || err1 != nil || err2 != nil || len(name) == 0 {
		return 0, 0, nil
	}
	return begin, size, name
}
