package probe

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

// mappingsShares returns the processes with over half of vm.max_map_count, of the shares of some.
func mappingsShares(h Host, shares map[int]float64) (found []fact.Fact) {
	for pid, share := range shares {
		if share > limitsShown {
			found = append(found, fact.Fact{Name: fact.ProcessMaps, Value: share, Unit: fact.Share, Subject: processOf(h, pid)})
		}
	}
	return largest(found, shownProcesses)
}

// mappings returns the share of vm.max_map_count (sysctl/vm.rst) that each process has, of those with
// at least the given share. The kernel tells the number nowhere, and it takes 1 µs for each mapping to
// read all: a mapping has at least a page, so only large processes are read.
func mappings(ctx context.Context, h Host, from float64) map[int]float64 {
	most, err := number(string(h.Proc) + "/sys/vm/max_map_count")
	if err != nil || most <= 0 {
		return nil
	}
	found := make(map[int]float64)
	pids, _ := h.Proc.Pids() // without a list no process is known
	for _, pid := range pids {
		if ctx.Err() != nil {
			break
		}
		dir := string(h.Proc) + "/" + strconv.Itoa(pid)
		text, _ := read(dir + "/statm") // none if it has ended
		size, _, _ := strings.Cut(text, " ")
		pages, err := strconv.ParseFloat(size, 64)
		if err != nil || pages < most*from || h.Proc.Blocked(pid) {
			continue
		}
		n, err := countLines(dir+"/maps", most)
		if err == nil && n > most*from {
			found[pid] = n / most
		}
	}
	return found
}

// countLines counts the lines of a file, up to a number, without keeping them.
func countLines(file string, most float64) (float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var buf [1 << 16]byte
	n := 0.0
	for n < most {
		read, err := f.Read(buf[:])
		n += float64(bytes.Count(buf[:read], []byte("\n")))
		if errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
	return n, nil
}
