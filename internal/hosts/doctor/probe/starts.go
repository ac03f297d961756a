package probe

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
)

const (
	startsEvery = 200 * time.Millisecond
	// startsMost bounds the processes that one sample reads. It reads the latest ones.
	startsMost  = 4096
	startsYoung = 25 // samples, 5 s
	// startsScans bounds how often all processes are searched for a client of the engine. A
	// client that has just begun is found without a search.
	startsScans = 3
)

// startsProbe counts the containers and the commands in containers that engines start, and
// finds the programs that ask for them: those with connections to an engine's Unix socket
// that are made again and again. It sees only what lives for about 200 ms.
func startsProbe() Probe {
	return Probe{
		Name: "starts", Sees: "programs that start containers, or commands in them, without a pause",
		Gives: []string{fact.EnginesSeen, fact.Starts, fact.ClientBusy},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			w, err := newStarts(h, unixSockets)
			if err != nil {
				return nil, err
			}
			return sampled{sampling(ctx, now, startsEvery, w.sample, nil), w.facts}, nil
		},
	}
}

// engines are the commands of engines.
func engines() []string { return []string{"dockerd", "containerd", "podman", "crio"} }

// unixSockets lists the Unix sockets of this network namespace.
func unixSockets() ([]sockdiag.Unix, error) {
	d, err := sockdiag.Open()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.UnixSockets()
}

// starts is the state of the probe. It belongs to the goroutine of its sampler.
type starts struct {
	h       Host
	sockets func() ([]sockdiag.Unix, error)
	names   map[string]bool // of the engines' sockets

	last    int             // the pid that the kernel assigned last
	young   map[int]float64 // processes that began lately: the number of the sample that found them
	old     map[uint32]bool // connections from before the examination
	clients map[uint32]fact.Subject
	of      map[string]fact.Subject // a client of each group
	callers map[int]bool            // processes that were clients
	own     func(pid int) bool      // ownProgram
	scans   int

	count float64 // starts
	total float64 // samples
	busy  map[string]float64
}

func newStarts(h Host, sockets func() ([]sockdiag.Unix, error)) (*starts, error) {
	w := &starts{h: h, sockets: sockets, names: map[string]bool{}, clients: map[uint32]fact.Subject{}, of: map[string]fact.Subject{}, busy: map[string]float64{}, young: map[int]float64{}, callers: map[int]bool{}, own: ownProgram(h)}
	all, err := sockets()
	if err != nil {
		return nil, err
	}
	dirs, err := processesOf(h, engines())
	if err != nil {
		return nil, err
	}
	owned := map[uint32]bool{}
	for _, dir := range dirs {
		for _, inode := range socketsOfProcess(dir) {
			owned[inode] = true
		}
	}
	for _, s := range all {
		if owned[s.Inode] && s.Name != "" {
			w.names[s.Name] = true
		}
	}
	w.old = w.connections(all)
	w.last, err = lastPid(h)
	return w, err
}

func (w *starts) dir(pid int) string { return string(w.h.Proc) + "/" + strconv.Itoa(pid) }

// connections returns the clients' ends of the connections to engines.
func (w *starts) connections(all []sockdiag.Unix) map[uint32]bool {
	ends := map[uint32]bool{}
	for _, s := range all {
		if w.names[s.Name] && s.Peer != 0 {
			ends[s.Peer] = true
		}
	}
	return ends
}

// lastPid returns the pid that the kernel assigned last (proc_loadavg(5)).
func lastPid(h Host) (int, error) {
	text, err := read(string(h.Proc) + "/loadavg")
	if err != nil {
		return 0, err
	}
	f := strings.Fields(text)
	if len(f) < 5 {
		return 0, fmt.Errorf("/proc/loadavg: %w", proc.ErrFormat)
	}
	return strconv.Atoi(f[4])
}

// sample looks at the processes that began since the last one, and at the connections.
func (w *starts) sample() map[string]float64 {
	w.total++
	all, err := w.sockets()
	if err != nil {
		return nil // the next sample may see them
	}
	fresh := w.connections(all)
	for inode := range w.old {
		delete(fresh, inode)
	}
	w.newProcesses()
	for pid := range w.callers { // a client may make a connection for each call
		if w.knows(fresh) {
			break
		}
		w.match(pid, fresh)
	}
	if !w.knows(fresh) {
		for pid := range w.young {
			w.match(pid, fresh)
		}
	}
	if w.scans < startsScans && !w.knows(fresh) {
		w.scans++
		pids, _ := w.h.Proc.Pids() // without a list the client stays unknown
		for _, pid := range pids {
			w.match(pid, fresh)
		}
	}
	at := map[string]bool{}
	for inode := range fresh {
		if c := w.clients[inode]; c.Cgroup != "" {
			at[c.Cgroup] = true
		}
	}
	for group := range at {
		w.busy[group]++
	}
	return nil
}

// knows reports whether the clients of all connections are known.
func (w *starts) knows(ends map[uint32]bool) bool {
	for inode := range ends {
		if _, known := w.clients[inode]; !known {
			return false
		}
	}
	return true
}

// newProcesses counts those that an engine has started, and remembers the others for a while:
// a client takes some time until it connects.
func (w *starts) newProcesses() {
	maps.DeleteFunc(w.young, func(_ int, since float64) bool { return w.total-since > startsYoung })
	last, err := lastPid(w.h)
	if err != nil {
		return
	}
	first := w.last + 1
	if last < w.last { // the numbers began again
		first = 1
	}
	w.last = last
	for pid := max(first, last-startsMost); pid <= last; pid++ {
		st, err := w.h.Proc.Stat(pid)
		if err != nil {
			continue // it has ended
		}
		if w.started(pid, st) {
			w.count++
		} else if len(w.young) < startsMost {
			w.young[pid] = w.total
		}
	}
}

// started reports whether a process is the first of a container or of a command in one: a
// runtime is still setting it up, or its parent is a shim.
func (w *starts) started(pid int, st proc.Stat) bool {
	parent, err := w.h.Proc.Stat(st.PPid)
	if err != nil {
		return false
	}
	runtime := strings.HasPrefix(st.Comm, "runc") || strings.HasPrefix(st.Comm, "crun")
	switch {
	case strings.HasPrefix(st.Comm, "runc:[2"):
	case strings.HasPrefix(parent.Comm, "containerd-shim"), parent.Comm == "conmon":
		if runtime || strings.HasPrefix(st.Comm, "containerd-shim") {
			return false
		}
	default:
		return false
	}
	status, err := os.ReadFile(w.dir(pid) + "/status")
	leader, _ := proc.Field(status, "Tgid")
	return err == nil && leader == strconv.Itoa(pid) // pids are those of threads, too
}

// match remembers a process if it has one of the connections. Engines are each other's clients,
// and an agent of Holdfast's, which this program may be, acts for the clients of its sessions.
func (w *starts) match(pid int, fresh map[uint32]bool) {
	for _, inode := range socketsOfProcess(w.dir(pid)) {
		if !fresh[inode] {
			continue
		}
		c := fact.Subject{Pid: pid}
		if name, err := read(w.dir(pid) + "/comm"); err == nil {
			c.Command = strings.TrimSpace(name)
		}
		if c.Command != "holdfast" && !w.own(pid) && !slices.Contains(engines(), c.Command) {
			c.Cgroup, _ = groupOf(w.h, pid)
		}
		w.clients[inode] = c
		if c.Cgroup != "" {
			w.callers[pid] = true
			w.of[c.Cgroup] = c
		}
	}
}

// socketsOfProcess returns the inodes of a process's sockets; none if it has ended.
func socketsOfProcess(dir string) []uint32 {
	files, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return nil
	}
	var inodes []uint32
	for _, f := range files {
		to, err := os.Readlink(dir + "/fd/" + f.Name())
		number, ok := strings.CutPrefix(to, "socket:[")
		if err != nil || !ok {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32); err == nil {
			inodes = append(inodes, uint32(n))
		}
	}
	return inodes
}

func (w *starts) facts(samples []levels) []fact.Fact {
	over := samples[len(samples)-1].at.Sub(samples[0].at).Seconds()
	if over <= 0 {
		return nil
	}
	fs := []fact.Fact{host(fact.EnginesSeen, float64(len(w.names)), fact.Count), host(fact.Starts, w.count/over, fact.PerSecond)}
	for group, n := range w.busy {
		c := w.of[group]
		c.Pid = 0 // another one by now
		fs = append(fs, fact.Fact{Name: fact.ClientBusy, Value: n / w.total, Unit: fact.Share, Subject: c})
	}
	return fs
}
