package probe

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/threads"
)

// namespacesProbe counts what piles up in the namespaces of containers: mounts, shared memory
// segments, local ports, refused connections and packets.
func namespacesProbe() Probe {
	return Probe{
		Name: "namespaces", Sees: "mounts, local ports, shared memory and full accept queues of containers",
		Gives: []string{fact.NamesSeen, fact.Mounts, fact.Segments, fact.Queues, fact.Ports, fact.ListenDrops, fact.Packets},
		Open:  counted(readNamespaces, namespaceFacts),
	}
}

// space is a namespace with the process that it was read of.
type space struct {
	kind    string // mnt, net or ipc
	subject fact.Subject
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
		name, err := os.Readlink(string(h.Proc) + "/1/ns/" + kind)
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
			if err != nil || kind != "net" && own[name] || len(spaces) >= maxNamespaces || seen && !holds(h, s.subject.Pid) {
				continue // of the host, gone, or known
			}
			if !seen {
				s = space{kind: kind, values: readOf(h, dir)}
			}
			if s.subject = (fact.Subject{}); !own[name] {
				s.subject.Pid = pid
				s.subject.Cgroup, _ = groupOf(h, pid)
			}
			s.subject.Device = name
			spaces[name] = s
		}
	}
	return spaces, nil
}

func mountsOf(_ Host, dir string) sample {
	s := make(sample)
	if text, err := read(dir + "/mountinfo"); err == nil {
		s["mounts"] = float64(strings.Count(text, "\n"))
	}
	return s
}

// segmentsOf counts the System V shared memory segments and the POSIX message queues of an IPC
// namespace, of which kernel.shmmni and fs.mqueue.queues_max are the maximum: sysvipc(7),
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
		list, err := kfile.Read("/proc/sysvipc/shm", maxFile)
		most, err2 := number("/proc/sys/kernel/shmmni")
		if err == nil && err2 == nil && most > 0 {
			s["segments"] = float64(max(0, strings.Count(string(list), "\n")-1)) / most
		}
		queues, err3 := messageQueues()
		if limit, err := number("/proc/sys/fs/mqueue/queues_max"); err == nil && err3 == nil && limit > 0 {
			s["queues"] = queues / limit
		}
		return errors.Join(err, err2)
	})
	return s
}

// messageQueues counts the queues of this thread's IPC namespace. They are files of a file system
// that is mounted nowhere: a path of the container could lead anywhere. Linux 5.2 or later.
func messageQueues() (float64, error) {
	fs, err := unix.Fsopen("mqueue", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return 0, err
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
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

// portsFrom is the number of sockets from which the table of connections is read.
const portsFrom = 1000

// socketsOf reads the counters of a network namespace: netstat, dev and sockstat of proc_pid_net(5).
func socketsOf(h Host, dir string) sample {
	s := make(sample)
	if text, err := read(dir + "/net/netstat"); err == nil {
		if v, ok := netstat(text, "ListenOverflows"); ok {
			s["overflows"] = v
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
	text, err := read(dir + "/net/sockstat")
	_, rest, found := strings.Cut(text, "TCP:")
	line, _, _ := strings.Cut(rest, "\n")
	n := 0.0
	if f := strings.Fields(line); err == nil && found { // inuse 5 orphan 0 tw 7 alloc 6 mem 0
		for i := 0; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i+1], 64); err == nil && (f[i] == "inuse" || f[i] == "tw") {
				n += v
			}
		}
	}
	if n >= portsFrom {
		if share, err := portsShare(h, dir); err == nil {
			s["ports"] = share
		}
	}
	return s
}

// netstat returns a counter of TcpExt: a line of names, then one of values.
func netstat(text, name string) (float64, bool) {
	lines := strings.Split(text, "\n")
	for i := 0; i+1 < len(lines); i++ {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if len(names) == 0 || names[0] != "TcpExt:" || len(names) != len(values) {
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

// portsShare returns the share of the local ports (ip_local_port_range of ip(7); that of the
// host) that is in use towards the one address and port with most connections.
func portsShare(h Host, dir string) (float64, error) {
	text, err := read(string(h.Proc) + "/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, err
	}
	limits, err := floats(text)
	if err != nil || len(limits) != 2 || limits[1] < limits[0] {
		return 0, errors.New("ip_local_port_range: unexpected format")
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
			_, port, ok := strings.Cut(f[1], ":")
			v, err := strconv.ParseUint(port, 16, 16)
			if ok && err == nil && float64(v) >= limits[0] && float64(v) <= limits[1] {
				towards[f[2]]++
				most = max(most, towards[f[2]])
			}
		}
	}
	return most / (limits[1] - limits[0] + 1), nil
}

func namespaceFacts(_ Host, before, after map[string]space, over time.Duration) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.NamesSeen, float64(len(after)), fact.Count)}
	for name, b := range after {
		for key, f := range map[string]fact.Fact{"mounts": {Name: fact.Mounts}, "segments": {Name: fact.Segments, Unit: fact.Share}, "queues": {Name: fact.Queues, Unit: fact.Share}, "ports": {Name: fact.Ports, Unit: fact.Share}} {
			if v, ok := b.values[key]; ok {
				f.Value, f.Subject = v, b.subject
				fs = append(fs, f)
			}
		}
		for key, fact1 := range map[string]string{"overflows": fact.ListenDrops, "packets": fact.Packets} {
			if v, ok := b.values.grew(before[name].values, key); ok {
				fs = append(fs, fact.Fact{Name: fact1, Value: v / over.Seconds(), Unit: fact.PerSecond, Subject: b.subject})
			}
		}
	}
	return fs, nil
}
