package probe

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/conntrack"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
)

const (
	// crowded is the use of the host's table from which its entries are read.
	crowded = 0.5
	// maxFlows bounds the entries that are read, of a table that may have a million.
	maxFlows = 20_000
)

// conntrackUser returns the container or the process from or to which most of the entries of the host's
// table are, and their share. Connections of containers behind a bridge are in the host's table, where a
// namespace's own figures do not show them.
func conntrackUser(h Host, tables map[string]table) (fact.Fact, bool) {
	var own table
	for _, t := range tables {
		if t.subject.Pid == 0 {
			own = t
		}
	}
	if own.max <= 0 || own.entries < crowded*own.max {
		return fact.Fact{}, false
	}
	flows, err := conntrack.Flows(maxFlows)
	if err != nil || len(flows) == 0 { // without CAP_NET_ADMIN, the finding names only the table
		return fact.Fact{}, false
	}
	user, share, ok := mostFlows(h, flows, tables, socketHolder)
	user.Device = own.subject.Device
	return fact.Fact{Name: fact.ConnUser, Value: share, Unit: fact.Share, Subject: user}, ok
}

// endpoint is one side of a flow.
type endpoint struct {
	protocol uint8
	at       netip.AddrPort
}

// mostFlows finds the user of over half of the flows: the namespace that has the address, or the process that has the
// socket. holder finds a process by a local port.
func mostFlows(h Host, flows []conntrack.Flow, tables map[string]table, holder func(Host, endpoint) (fact.Subject, bool)) (fact.Subject, float64, bool) {
	addrs, ends, clients := make(map[netip.Addr]int), make(map[endpoint]int), make(map[netip.Addr]int)
	for _, f := range flows {
		for _, at := range []netip.AddrPort{f.Client, f.Server} {
			ends[endpoint{f.Protocol, at}]++
		}
		clients[f.Client.Addr()]++
		addrs[f.Client.Addr()]++
		if f.Client.Addr() != f.Server.Addr() {
			addrs[f.Server.Addr()]++
		}
	}
	share := func(n int) float64 { return float64(n) / float64(len(flows)) }
	// Of two with as many, the one that begins the connections.
	for _, addr := range mostFirst(addrs, len(flows), func(a netip.Addr) int { return clients[a] }) {
		if s, ok := namespaceWith(h, addr, tables); ok {
			return s, share(addrs[addr]), true
		}
	}
	for _, end := range mostFirst(ends, len(flows), func(e endpoint) int { return clients[e.at.Addr()] }) {
		if !local(h, end.at.Addr()) {
			continue
		}
		if s, ok := holder(h, end); ok {
			return s, share(ends[end]), true
		}
	}
	return fact.Subject{}, 0, false
}

// mostFirst returns the keys that have over half of all, those with the most first, and of equal ones that of the higher rank.
func mostFirst[K comparable](counts map[K]int, all int, rank func(K) int) []K {
	over := slices.Collect(maps.Keys(counts))
	over = slices.DeleteFunc(over, func(k K) bool { return counts[k]*2 <= all })
	slices.SortFunc(over, func(a, b K) int { return cmp.Or(counts[b]-counts[a], rank(b)-rank(a)) })
	return over
}

// namespaceWith returns a process of the only namespace besides the host's that has an address. An address that several
// have, behind bridges of their own, names none.
func namespaceWith(h Host, addr netip.Addr, tables map[string]table) (found fact.Subject, ok bool) {
	for _, t := range tables {
		if t.subject.Pid == 0 || !has(string(h.Proc)+"/"+strconv.Itoa(t.subject.Pid), addr) {
			continue
		}
		if ok {
			return fact.Subject{}, false
		}
		found, ok = fact.Subject{Cgroup: t.subject.Cgroup, Pid: t.subject.Pid}, true
	}
	return found, ok
}

// local reports whether an address is this namespace's.
func local(h Host, addr netip.Addr) bool {
	return addr.IsLoopback() || has(string(h.Proc)+"/self", addr)
}

// has reports whether the network namespace of a process, by its directory in procfs, has an address besides the
// loopback's.
func has(dir string, addr netip.Addr) bool {
	if addr.IsLoopback() {
		return false
	}
	if addr.Is4() {
		return inTrie(dir+"/net/fib_trie", addr)
	}
	text, err := os.ReadFile(dir + "/net/if_inet6")
	a := addr.As16()
	return err == nil && strings.Contains(string(text), hex.EncodeToString(a[:])+" ")
}

// inTrie reports whether an address is a local one in the file fib_trie: its line "|-- <address>" is followed
// by "/32 host LOCAL".
func inTrie(file string, addr netip.Addr) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	leaf, within := "|-- "+addr.String(), false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		switch {
		case strings.HasPrefix(line, "|--"):
			within = line == leaf
		case within && line == "/32 host LOCAL":
			return true
		}
	}
	return false
}

// socketHolder returns the process that has the listening TCP socket, or the unconnected UDP socket, of a port.
func socketHolder(h Host, end endpoint) (fact.Subject, bool) {
	d, err := sockdiag.Open()
	if err != nil {
		return fact.Subject{}, false
	}
	defer d.Close()
	find := d.Listeners
	if end.protocol == unix.IPPROTO_UDP {
		find = d.Receivers
	}
	sockets, err := find(end.at.Port())
	if err != nil || len(sockets) == 0 {
		return fact.Subject{}, false
	}
	holders, err := pidfd.Holders(sockets[0].Inode)
	if err != nil || len(holders[sockets[0].Inode]) == 0 {
		return fact.Subject{}, false
	}
	s := fact.Subject{Pid: holders[sockets[0].Inode][0].Pid}
	s.Cgroup, _ = groupOf(h, s.Pid)
	if st, err := h.Proc.Stat(s.Pid); err == nil {
		s.Command = st.Comm
	}
	return s, true
}
