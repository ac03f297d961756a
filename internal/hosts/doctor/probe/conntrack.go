package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/threads"
)

// conntrackProbe reads the use of the connection tracking table of each network namespace
// with processes.
func conntrackProbe() Probe {
	return Probe{
		Name: "conntrack", Sees: "full connection tracking tables, on the host and in containers",
		Gives: []string{fact.ConnTables, fact.Conntrack, fact.ConnDrops, fact.ConnUser},
		Open:  counted(readConntrack, conntrackFacts),
	}
}

// hostConntrackProbe reads the use of the connection tracking table of this network
// namespace. The tables of other namespaces require a pass over every process, which a
// burst makes.
func hostConntrackProbe() Probe {
	return Probe{
		Name: "conntrack", Sees: "use of the host's own connection tracking table",
		Gives: []string{fact.ConnHost},
		Open:  moment(readHostConntrack),
	}
}

func readHostConntrack(_ context.Context, h Host) ([]fact.Fact, error) {
	used, err := number(string(h.Proc) + "/sys/net/netfilter/nf_conntrack_count")
	limit, err2 := number(string(h.Proc) + conntrackMax)
	switch {
	case gone(err) || gone(err2):
		return nil, nil // the kernel does not track connections
	case err != nil || err2 != nil:
		return nil, errors.Join(err, err2)
	case limit <= 0:
		return nil, errors.New("nf_conntrack_max is 0")
	}
	return []fact.Fact{host(fact.ConnHost, used/limit, fact.Share)}, nil
}

// conntrackMax is the file with the size of a table, below the procfs.
const conntrackMax = "/sys/net/netfilter/nf_conntrack_max"

// table is the connection tracking table of one network namespace.
type table struct {
	subject             fact.Subject // without a process: this namespace's own table
	entries, drops, max float64
}

// maxNamespaces bounds the number of namespaces that are read.
const maxNamespaces = 2000

func readConntrack(_ context.Context, h Host) (map[string]table, error) {
	most, err := number(string(h.Proc) + conntrackMax)
	if gone(err) {
		if _, err := os.Stat(string(h.Proc) + "/sys/net"); err != nil {
			return nil, err // the figures are unknown
		}
		return nil, nil // the kernel does not track connections
	} else if err != nil {
		return nil, err
	}
	pids, err := h.Proc.Pids()
	if err != nil {
		return nil, err
	}
	tables := make(map[string]table)
	seen := make(map[string]bool)
	own, _ := os.Readlink(string(h.Proc) + "/self/ns/net")
	for _, pid := range pids {
		dir := string(h.Proc) + "/" + strconv.Itoa(pid)
		ns, err := os.Readlink(dir + "/ns/net")
		if err != nil {
			continue
		}
		if t, ok := tables[ns]; ok && holds(h, t.subject.Pid) {
			t.subject.Pid = pid
			t.subject.Cgroup, _ = groupOf(h, pid)
			tables[ns] = t
		}
		if seen[ns] || len(seen) >= maxNamespaces {
			continue
		}
		seen[ns] = true
		text, err := read(dir + "/net/stat/nf_conntrack")
		if err != nil {
			continue
		}
		t, err := parseConntrack(text)
		if err != nil {
			return nil, err
		}
		t.max = most
		if ns != own && t.entries > 0 { // newer kernels have a limit for each namespace
			if m, err := limitIn(dir + "/ns/net"); err == nil {
				t.max = m
			}
		}
		t.subject = fact.Subject{Device: ns}
		if ns != own {
			t.subject.Pid = pid
			t.subject.Cgroup, _ = groupOf(h, pid)
		}
		tables[ns] = t
	}
	if len(tables) == 0 {
		return nil, errors.New("no connection tracking table can be read (CONFIG_NF_CONNTRACK_PROCFS)")
	}
	return tables, nil
}

// holds reports whether a process only keeps a namespace open for other processes, which
// are named instead. It recognises such programs by name: Holdfast's own (docs/pools.md)
// and that of Kubernetes.
func holds(h Host, pid int) bool {
	if pid == 0 {
		return false
	}
	st, err := h.Proc.Stat(pid)
	return err == nil && st.Comm == "pause"
}

// parseConntrack reads /proc/net/stat/nf_conntrack: a header, and a line of hexadecimal
// numbers for each CPU. The first number is the same in all lines. "drop" and
// "early_drop" count connections for which the table had no space.
func parseConntrack(text string) (table, error) {
	var t table
	lines := strings.Split(strings.TrimSpace(text), "\n")
	head := strings.Fields(lines[0])
	for _, line := range lines[1:] {
		for i, f := range strings.Fields(line) {
			v, err := strconv.ParseUint(f, 16, 64)
			if err != nil || i >= len(head) {
				return t, fmt.Errorf("nf_conntrack: unexpected format: %q", line)
			}
			switch head[i] {
			case "entries":
				t.entries = float64(v)
			case "drop", "early_drop":
				t.drops += float64(v)
			}
		}
	}
	return t, nil
}

// limitIn reads nf_conntrack_max inside a network namespace.
func limitIn(ns string) (limit float64, err error) {
	err = threads.Spend(func() error {
		f, err := os.Open(ns)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		limit, err = number("/proc" + conntrackMax)
		return err
	})
	return limit, err
}

func conntrackFacts(h Host, before, after map[string]table, _ time.Duration) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.ConnTables, float64(len(after)), fact.Count)}
	for ns, b := range after {
		if b.max > 0 {
			fs = append(fs, fact.Fact{Name: fact.Conntrack, Value: b.entries / b.max, Unit: fact.Share, Subject: b.subject})
		}
		if a, ok := before[ns]; ok && b.drops >= a.drops {
			fs = append(fs, fact.Fact{Name: fact.ConnDrops, Value: b.drops - a.drops, Subject: b.subject})
		}
	}
	if user, ok := conntrackUser(h, after); ok {
		fs = append(fs, user)
	}
	return fs, nil
}
