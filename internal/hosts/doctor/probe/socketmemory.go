package probe

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// socketMemoryProbe samples the memory of TCP sockets, which all containers share (tcp_mem of
// tcp(7)). cgroup v1 charges it to no container by default, and the data of a connection that its
// process has closed belongs to no process.
func socketMemoryProbe() Probe {
	return Probe{
		Name: "socket memory", Sees: "memory of TCP sockets",
		Gives: []string{fact.SocketMemory, fact.SocketLimit, fact.SocketGrowth, fact.SocketLow, fact.SocketOrphans, fact.SocketQueued, fact.SocketLeft},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			_, err := tcpSockets(h)
			_, err2 := socketLimit(h)
			if err := errors.Join(err, err2); err != nil {
				return nil, err
			}
			take := func() map[string]float64 {
				s, _ := tcpSockets(h) // a sample without values has no growth
				return s
			}
			return sampled{sampling(ctx, now, growthEvery, take, nil), func(s []levels) []fact.Fact { return socketFacts(ctx, h, s) }}, nil
		},
	}
}

// tcpSockets returns the figures of the line "TCP: inuse 5 orphan 0 tw 7 alloc 6 mem 0" of sockstat.
// Orphans and memory, in pages, are those of all namespaces.
func tcpSockets(h Host) (map[string]float64, error) {
	text, err := read(string(h.Proc) + "/net/sockstat")
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(text, "TCP:")
	line, _, _ := strings.Cut(rest, "\n")
	f := strings.Fields(line)
	s := make(map[string]float64)
	for i := 0; i+1 < len(f); i += 2 {
		if s[f[i]], err = strconv.ParseFloat(f[i+1], 64); err != nil {
			return nil, err
		}
	}
	s["mem"] *= float64(os.Getpagesize())
	return s, nil
}

// socketLimit returns the bytes of tcp_mem from which the kernel saves memory, its second value.
// Only the first network namespace has the file; elsewhere it is the default, a sixteenth of
// memory (tcp_init_mem, net/ipv4/tcp.c).
func socketLimit(h Host) (float64, error) {
	text, err := read(string(h.Proc) + "/sys/net/ipv4/tcp_mem")
	if gone(err) {
		info, err := read(string(h.Proc) + "/meminfo")
		if total := numbers(info)["MemTotal"]; err == nil && total > 0 {
			return total * 1024 / 16, nil
		}
		return 0, errors.Join(err, errors.New("the limit of TCP's memory is unknown"))
	}
	limits, err2 := floats(text) // low, pressure, high
	if err := errors.Join(err, err2); err != nil || len(limits) != 3 {
		return 0, errors.Join(err, errors.New("tcp_mem: unexpected format"))
	}
	return limits[1] * float64(os.Getpagesize()), nil
}

func socketFacts(ctx context.Context, h Host, samples []levels) []fact.Fact {
	now := samples[len(samples)-1].of
	used, known := now["mem"]
	limit, err := socketLimit(h)
	if !known || err != nil {
		return nil
	}
	fs := []fact.Fact{host(fact.SocketMemory, used, fact.Bytes), host(fact.SocketLimit, limit, fact.Bytes)}
	orphans := 0.0
	if most, err := number(string(h.Proc) + "/sys/net/ipv4/tcp_max_orphans"); err == nil && most > 0 {
		orphans = now["orphan"] / most
		fs = append(fs, host(fact.SocketOrphans, orphans, fact.Share))
	}
	g, ok := growthOf(samples, "mem")
	grows := ok && g.low > 0
	if grows {
		fs = append(fs, host(fact.SocketGrowth, g.mean, fact.Bytes), host(fact.SocketLow, g.low, fact.Bytes))
	}
	if used > limitsShown*limit || orphans > limitsShown || grows && g.mean*fillsSoon.Seconds() > limit-used {
		fs = append(fs, queues(ctx, h)...)
	}
	return fs
}

// fillsSoon is the time within which sockets reach their limit at their present growth for those
// with most data to be searched.
const fillsSoon = 30 * time.Minute

// queues returns the data in the queues of each network namespace with some.
func queues(ctx context.Context, h Host) []fact.Fact {
	var queued, left []fact.Fact
	seen := make(map[string]bool)
	own, _ := hostSpace(h, "net") // of the host; no process of it is to blame
	pids, _ := h.Proc.Pids()      // without a list no namespace is known
	for _, pid := range pids {
		dir := string(h.Proc) + "/" + strconv.Itoa(pid)
		name, err := os.Readlink(dir + "/ns/net")
		if err != nil || seen[name] || len(seen) >= maxNamespaces || ctx.Err() != nil {
			continue
		}
		seen[name] = true
		all, orphaned := queuesOf(dir)
		if all == 0 {
			continue
		}
		s := fact.Subject{}
		if name != own {
			s = processOf(h, pid)
		}
		s.Device = name
		queued = append(queued, fact.Fact{Name: fact.SocketQueued, Value: all, Unit: fact.Bytes, Subject: s})
		left = append(left, fact.Fact{Name: fact.SocketLeft, Value: orphaned, Unit: fact.Bytes, Subject: s})
	}
	return append(largest(queued, shownProcesses), largest(left, shownProcesses)...)
}

// queuesOf returns the bytes in the queues of a namespace's TCP sockets, and those in sockets that
// no process has: their inode is 0 (proc_pid_net(5)). The receive queue of a listener counts
// connections.
func queuesOf(dir string) (all, orphaned float64) {
	const listens = "0A" // TCP_LISTEN
	for _, file := range []string{"/net/tcp", "/net/tcp6"} {
		table, _ := read(dir + file) // without IPv6 there is no tcp6
		for line := range strings.Lines(table) {
			f := strings.Fields(line) // 0: 0100007F:1F90 0100007F:C350 04 00040A01:00000000 04:05 0 0 0 0 …
			if len(f) < 10 || f[3] == listens {
				continue
			}
			sent, received, _ := strings.Cut(f[4], ":")
			tx, err := strconv.ParseUint(sent, 16, 64)
			rx, err2 := strconv.ParseUint(received, 16, 64)
			if err != nil || err2 != nil {
				continue // the line of names
			}
			if all += float64(tx + rx); f[9] == "0" {
				orphaned += float64(tx + rx)
			}
		}
	}
	return all, orphaned
}
