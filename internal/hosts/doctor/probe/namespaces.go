package probe

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/threads"
)

// namespacesProbe counts what piles up in the namespaces of containers: mounts, objects of System V,
// message queues, local ports, connections that are not closed, refused connections, dropped datagrams and
// packets.
func namespacesProbe() Probe {
	return Probe{
		Name: "namespaces", Sees: "mounts, local ports, System V objects, unclosed connections, full accept queues, dropped datagrams and lost segments of containers",
		Gives: []string{fact.NamesSeen, fact.Mounts, fact.GroupSpaces, fact.GroupSpacesOld, fact.GroupMounts, fact.Segments, fact.Semaphores, fact.Messages, fact.QueueBytes, fact.Queues, fact.Ports, fact.TimeWait, fact.Fragments, fact.MemoryDisk, fact.MemoryDiskMore, fact.Unclosed, fact.UnclosedMore, fact.ListenDrops, fact.HalfOpenDrops, fact.Retransmits, fact.RetransShare, fact.Unanswered, fact.UnixWaiting, fact.DatagramDrops, fact.DatagramMemory, fact.Packets},
		Open:  counted(readNamespaces, namespaceFacts),
	}
}

// space is a namespace with the process that it was read of.
type space struct {
	kind    string // mnt, net or ipc
	subject fact.Subject
	group   string // the process's own: in a container that runs containers, that of the inner one
	values  sample
}

// readNamespaces reads each namespace other than this program's own once, by its name: net:[1].
func readNamespaces(ctx context.Context, h Host) (map[string]space, error) {
	pids, err := h.Proc.Pids()
	if err != nil {
		return nil, err
	}
	spaces := make(map[string]space)
	own := make(map[string]bool)
	kinds := map[string]func(Host, string) sample{"mnt": mountsOf, "net": socketsOf, "ipc": segmentsOf}
	for kind := range kinds {
		name, err := hostSpace(h, kind)
		if err != nil {
			return nil, err
		}
		own[name] = true
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		dir := string(h.Proc) + "/" + strconv.Itoa(pid)
		for kind, readOf := range kinds {
			name, err := os.Readlink(dir + "/ns/" + kind)
			s, seen := spaces[name]
			if err != nil || kind != "net" && own[name] || seen && !holds(h, s.subject.Pid) {
				continue // of the host, gone, or known
			}
			full := len(spaces) >= maxNamespaces
			if full && kind != "mnt" { // of mount namespaces the number counts, and it is cheap
				continue
			}
			if !seen {
				s = space{kind: kind}
			}
			if !seen && !full {
				s.values = readOf(h, dir)
			}
			if s.subject = (fact.Subject{}); !own[name] {
				s.subject.Pid = pid
				s.subject.Cgroup, s.group = groupsOf(h, pid)
			}
			s.subject.Device = name
			spaces[name] = s
		}
	}
	return spaces, nil
}

// hostSpace returns the name of the host's namespace of a kind: that of the first process. Root may
// not read it if the process has a capability that this program lacks (ptrace(2), access mode
// checking); it is then taken as this program's.
func hostSpace(h Host, kind string) (string, error) {
	name, err := os.Readlink(string(h.Proc) + "/1/ns/" + kind)
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0 {
		return os.Readlink(string(h.Proc) + "/self/ns/" + kind)
	}
	return name, err
}

func mountsOf(h Host, dir string) sample {
	s := make(sample)
	if text, err := read(dir + "/mountinfo"); err == nil {
		s["mounts"] = float64(strings.Count(text, "\n"))
		if string(h.Proc) == "/proc" {
			addMemoryDisks(s, dir, text)
		}
	}
	return s
}

// segmentsOf returns the shares of an IPC namespace's maximum that its System V shared memory
// segments, arrays of semaphores and message queues, and its POSIX message queues are: sysvipc(7),
// mq_overview(7).
func segmentsOf(h Host, dir string) sample {
	s := make(sample)
	f, err := os.Open(dir + "/ns/ipc")
	if err != nil || string(h.Proc) != "/proc" {
		return s
	}
	defer f.Close()
	_ = threads.Spend(func() error { // without the namespace the number is unknown
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWIPC); err != nil {
			return err
		}
		for key, of := range map[string]struct{ list, limit string }{
			"segments": {"shm", "shmmni"}, "semaphores": {"sem", "sem"}, "messages": {"msg", "msgmni"},
		} {
			list, err := kfile.Read("/proc/sysvipc/"+of.list, maxFile)
			text, err2 := read("/proc/sys/kernel/" + of.limit)
			limits, err3 := floats(text) // of kernel.sem the last is SEMMNI
			if err := errors.Join(err, err2, err3); err != nil || len(limits) == 0 {
				return err
			}
			if most := limits[len(limits)-1]; most > 0 {
				s[key] = float64(max(0, strings.Count(string(list), "\n")-1)) / most
			}
		}
		if text, err := kfile.Read("/proc/sysvipc/msg", maxFile); err == nil {
			if most, err := number("/proc/sys/kernel/msgmnb"); err == nil && most > 0 {
				s["queue bytes"] = fullest(string(text)) / most
			}
		}
		queues, err := messageQueues()
		if limit, err2 := number("/proc/sys/fs/mqueue/queues_max"); err == nil && err2 == nil && limit > 0 {
			s["queues"] = queues / limit
		}
		return nil
	})
	return s
}

// fullest returns the bytes in the fullest queue of a list of System V message queues (sysvipc(7)):
// "key msqid perms cbytes qnum …".
func fullest(list string) (bytes float64) {
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) > 4 {
			n, _ := strconv.ParseFloat(f[3], 64) // of the header it is 0
			bytes = max(bytes, n)
		}
	}
	return bytes
}

// messageQueues counts the queues of this thread's IPC namespace. They are files of a file system
// that is mounted nowhere: a path of the container could lead anywhere. Linux 5.2 or later.
func messageQueues() (float64, error) {
	queues, err := unix.Fsopen("mqueue", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(queues)
	if err := unix.FsconfigCreate(queues); err != nil {
		return 0, err
	}
	mount, err := unix.Fsmount(queues, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(mount)
	root, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	dir := os.NewFile(uintptr(root), "mqueue")
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	return float64(len(names)), err
}

// connectionsFrom is the number of sockets from which the table of connections is read, and portsFrom
// that from which the use of local ports is a fact.
const (
	connectionsFrom = 200
	portsFrom       = 1000
)

// socketsOf reads the counters of a network namespace: netstat, snmp, dev, unix and sockstat of
// proc_pid_net(5).
func socketsOf(h Host, dir string) sample {
	s := make(sample)
	if text, err := read(dir + "/net/netstat"); err == nil {
		if v, ok := netstat(text, "TcpExt:", "ListenOverflows"); ok {
			s["overflows"] = v
		}
		for _, name := range []string{"TCPReqQFullDoCookies", "TCPReqQFullDrop"} {
			if v, ok := netstat(text, "TcpExt:", name); ok {
				s["half open"] += v
			}
		}
		if v, ok := netstat(text, "TcpExt:", "TCPSynRetrans"); ok {
			s["unanswered"] = v
		}
	}
	if text, err := read(dir + "/net/dev"); err == nil {
		for line := range strings.Lines(text) {
			// face: bytes packets …, received first
			if _, figures, ok := strings.Cut(line, ":"); ok {
				if v, err := floats(figures); err == nil && len(v) > 1 {
					s["packets"] += v[1]
				}
			}
		}
	}
	if text, err := read(dir + "/net/unix"); err == nil {
		addUnixWaiting(s, text)
	}
	text, _ := read(dir + "/net/sockstat") // none if the process has ended
	// The limits are those of the host: a namespace begins with the kernel's default, and few change it.
	for key, of := range map[string]struct{ protocol, figure, limit string }{
		"fragments": {"FRAG", "memory", "ipfrag_high_thresh"}, "time-wait": {"TCP", "tw", "tcp_max_tw_buckets"},
	} {
		if most, err := number(string(h.Proc) + "/sys/net/ipv4/" + of.limit); err == nil && most > 0 {
			s[key] = sockstat(text, of.protocol)[of.figure] / most
		}
	}
	tcp := sockstat(text, "TCP")
	if sockstat(text, "UDP")["inuse"] > 0 || tcp["inuse"] > 0 {
		snmp, _ := read(dir + "/net/snmp") // none if the process has ended
		for key, of := range map[string]struct{ protocol, name string }{
			"datagrams": {"Udp:", "RcvbufErrors"}, "datagram memory": {"Udp:", "MemErrors"}, // the latter since Linux 5.12
			"sent": {"Tcp:", "OutSegs"}, "sent again": {"Tcp:", "RetransSegs"},
		} {
			if v, ok := netstat(snmp, of.protocol, of.name); ok {
				s[key] = v
			}
		}
	}
	n := tcp["inuse"] + tcp["tw"]
	if n < connectionsFrom {
		return s
	}
	if ports, unclosed, err := connections(h, dir); err == nil {
		s["unclosed"] = unclosed
		if n >= portsFrom {
			s["ports"] = ports
		}
	}
	return s
}

// unixWaiting is the prefix of the values of Unix sockets whose connections wait for an accept, before
// their path.
const unixWaiting = "unix "

// addUnixWaiting counts the connections in the accept queues of Unix sockets, by the lines of
// proc_pid_net(5), unix: "0000: 00000002 00000000 00000000 0001 02 1234 /run/php.sock". A connection
// that no process has accepted is connecting, 02 (net/unix/af_unix.c, unix_seq_show).
func addUnixWaiting(s sample, table string) {
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 7 && f[4] != "0002" && f[5] == "02" { // 0002: datagrams
			s[unixWaiting+f[7]]++
		}
	}
}

// sockstat returns the figures of a protocol: "TCP: inuse 5 orphan 0 tw 7 alloc 6 mem 0".
func sockstat(text, protocol string) sample {
	s := make(sample)
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if name != protocol {
			continue
		}
		for f := strings.Fields(rest); len(f) > 1; f = f[2:] {
			if v, err := strconv.ParseFloat(f[1], 64); err == nil {
				s[f[0]] = v
			}
		}
	}
	return s
}

// netstat returns a counter of a protocol in netstat or snmp: a line of names, then one of values.
func netstat(text, protocol, name string) (float64, bool) {
	lines := strings.Split(text, "\n")
	for i := 0; i+1 < len(lines); i++ {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if len(names) == 0 || names[0] != protocol || len(names) != len(values) {
			continue
		}
		for j, n := range names {
			if n == name {
				v, err := strconv.ParseFloat(values[j], 64)
				return v, err == nil
			}
		}
	}
	return 0, false
}

// closeWait is the state CLOSE-WAIT in /proc/net/tcp (TCP_CLOSE_WAIT of include/net/tcp_states.h).
const closeWait = "08"

// connections returns the share of the local ports (ip_local_port_range of ip(7); that of the
// host) that is in use towards the one address and port with most connections, and the number of
// connections that their peer has closed and the program has not.
func connections(h Host, dir string) (ports, unclosed float64, err error) {
	text, err := read(string(h.Proc) + "/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, 0, err
	}
	limits, err := floats(text)
	if err != nil || len(limits) != 2 || limits[1] < limits[0] {
		return 0, 0, errors.New("ip_local_port_range: unexpected format")
	}
	towards := make(map[string]float64)
	most := 0.0
	for _, file := range []string{"/net/tcp", "/net/tcp6"} {
		table, err := read(dir + file)
		if err != nil {
			continue // without IPv6 there is no tcp6
		}
		for line := range strings.Lines(table) {
			f := strings.Fields(line) // 0: 0100007F:1F90 0100007F:C350 01 …
			if len(f) < 4 {
				continue
			}
			if f[3] == closeWait {
				unclosed++
			}
			_, port, ok := strings.Cut(f[1], ":")
			v, err := strconv.ParseUint(port, 16, 16)
			if ok && err == nil && float64(v) >= limits[0] && float64(v) <= limits[1] {
				towards[f[2]]++
				most = max(most, towards[f[2]])
			}
		}
	}
	return most / (limits[1] - limits[0] + 1), unclosed, nil
}

func namespaceFacts(_ Host, before, after map[string]space, over time.Duration) ([]fact.Fact, error) {
	found := []fact.Fact{host(fact.NamesSeen, float64(len(after)), fact.Count)}
	for name, b := range after {
		for key, f := range map[string]fact.Fact{"mounts": {Name: fact.Mounts}, "segments": {Name: fact.Segments, Unit: fact.Share}, "semaphores": {Name: fact.Semaphores, Unit: fact.Share}, "messages": {Name: fact.Messages, Unit: fact.Share}, "queue bytes": {Name: fact.QueueBytes, Unit: fact.Share}, "queues": {Name: fact.Queues, Unit: fact.Share}, "ports": {Name: fact.Ports, Unit: fact.Share}, "fragments": {Name: fact.Fragments, Unit: fact.Share}, "time-wait": {Name: fact.TimeWait, Unit: fact.Share}} {
			if v, ok := b.values[key]; ok {
				f.Value, f.Subject = v, b.subject
				found = append(found, f)
			}
		}
		found = append(found, memoryDiskFacts(before[name].values, b, over)...)
		for key, is := range b.values {
			if path, ok := strings.CutPrefix(key, unixWaiting); ok {
				s := b.subject
				s.Device = path
				found = append(found, fact.Fact{Name: fact.UnixWaiting, Value: min(is, before[name].values[key]), Unit: fact.Count, Subject: s})
			}
		}
		was, known := before[name].values["unclosed"]
		if is, ok := b.values["unclosed"]; ok && known {
			found = append(found, fact.Fact{Name: fact.Unclosed, Value: min(was, is), Unit: fact.Count, Subject: b.subject},
				fact.Fact{Name: fact.UnclosedMore, Value: (is - was) / over.Seconds(), Unit: fact.PerSecond, Subject: b.subject})
		}
		for key, fact1 := range map[string]string{"overflows": fact.ListenDrops, "half open": fact.HalfOpenDrops, "datagrams": fact.DatagramDrops, "datagram memory": fact.DatagramMemory, "unanswered": fact.Unanswered, "packets": fact.Packets} {
			if v, ok := b.values.grew(before[name].values, key); ok {
				found = append(found, fact.Fact{Name: fact1, Value: v / over.Seconds(), Unit: fact.PerSecond, Subject: b.subject})
			}
		}
		found = append(found, retransmits(before[name].values, b, over)...)
	}
	return append(found, groupSpaces(before, after)...), nil
}

// retransmits tells how many segments with data a network namespace has sent again: the kernel counts
// those of handshakes with them (RetransSegs and TCPSynRetrans, Documentation/networking/snmp_counter.rst).
func retransmits(before sample, after space, over time.Duration) []fact.Fact {
	again, ok := after.values.grew(before, "sent again")
	sent, ok2 := after.values.grew(before, "sent")
	handshakes, _ := after.values.grew(before, "unanswered")
	again -= handshakes
	if !ok || !ok2 || again <= 0 || sent <= 0 {
		return nil
	}
	return []fact.Fact{
		{Name: fact.Retransmits, Value: again / over.Seconds(), Unit: fact.PerSecond, Subject: after.subject},
		{Name: fact.RetransShare, Value: min(1, again/sent), Unit: fact.Share, Subject: after.subject},
	}
}

// groupsOf returns the group that a process's activity is attributed to, and the process's own,
// "" if it has ended.
func groupsOf(h Host, pid int) (unit, own string) {
	members, err := h.Groups.Members(h.Proc, pid)
	if err != nil {
		return "", ""
	}
	unit = unitOf(members)
	own = unit
	for _, m := range members {
		if len(m.Path) > len(own) && strings.HasPrefix(m.Path, unit) {
			own = m.Path
		}
	}
	return unit, own
}

// spacesFrom is the number of mount namespaces of a group from which it is a fact: most have one,
// and a build that runs each of its commands in a sandbox has one for each CPU.
const spacesFrom = 50

// groupSpaces counts the mount namespaces of each group of processes, and their mounts.
func groupSpaces(before, after map[string]space) []fact.Fact {
	type spaces struct {
		subject      fact.Subject // with the first of its processes
		n, old, size float64
	}
	groups := make(map[string]spaces)
	for name, s := range after {
		if s.kind != "mnt" || s.group == "" {
			continue
		}
		g := groups[s.group]
		if g.n == 0 || s.subject.Pid < g.subject.Pid {
			g.subject = s.subject
		}
		g.n++
		g.size += s.values["mounts"]
		// The number of a namespace that is gone is used again at once.
		if was, known := before[name]; known && was.subject.Pid == s.subject.Pid {
			g.old++
		}
		groups[s.group] = g
	}
	var found []fact.Fact
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		g := groups[group]
		if g.n < spacesFrom {
			continue
		}
		g.subject.Device = group
		for name, v := range map[string]float64{fact.GroupSpaces: g.n, fact.GroupSpacesOld: g.old, fact.GroupMounts: g.size} {
			found = append(found, fact.Fact{Name: name, Value: v, Unit: fact.Count, Subject: g.subject})
		}
	}
	return found
}
