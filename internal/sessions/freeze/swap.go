package freeze

import (
	"bytes"
	"strconv"

	"holdfast/internal/platform/linux/kfile"
)

// hasSwap reports whether the host has free swap space: at least a sixteenth of it, and a
// MiB.
func hasSwap() bool {
	b, err := kfile.Read("/proc/meminfo", 64<<10)
	if err != nil {
		return false
	}
	total, free := meminfo(b, "SwapTotal:"), meminfo(b, "SwapFree:")
	return free >= 1024 && free >= total/16
}

// meminfo returns a figure of /proc/meminfo in KiB (proc_meminfo(5)), 0 if it is missing.
func meminfo(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) < 2 || string(f[0]) != name {
			continue
		}
		n, _ := strconv.ParseInt(string(f[1]), 10, 64)
		return n
	}
	return 0
}
