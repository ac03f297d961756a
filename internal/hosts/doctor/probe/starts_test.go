package probe

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
	"holdfast/test/poll"
)

// fakeProc is a procfs in a directory.
type fakeProc struct {
	t   *testing.T
	dir string
}

func (p fakeProc) write(name, text string) {
	p.t.Helper()
	file := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// process adds a process with sockets. Its leader is leader; the same pid for a process.
func (p fakeProc) process(pid, parent, leader int, name, group string, inodes ...int) {
	p.t.Helper()
	dir := fmt.Sprint(pid)
	p.write(dir+"/comm", name+"\n")
	p.write(dir+"/stat", fmt.Sprintf("%d (%s) S %d 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 7 0 0 0", pid, name, parent))
	p.write(dir+"/status", fmt.Sprintf("Name:\t%s\nTgid:\t%d\n", name, leader))
	p.write(dir+"/cgroup", "0::"+group+"\n")
	if err := os.MkdirAll(filepath.Join(p.dir, dir, "fd"), 0o755); err != nil {
		p.t.Fatal(err)
	}
	for n, inode := range inodes {
		if err := os.Symlink(fmt.Sprintf("socket:[%d]", inode), filepath.Join(p.dir, dir, "fd", fmt.Sprint(n))); err != nil {
			p.t.Fatal(err)
		}
	}
	p.write("loadavg", fmt.Sprintf("0.1 0.1 0.1 1/9 %d\n", pid))
}

// Starts are counted by the processes that a shim or a runtime begins, and clients by the new
// connections to an engine's socket. Connections that existed before, and those between
// engines, do not count.
func TestStarts(t *testing.T) {
	root := t.TempDir()
	p := fakeProc{t, filepath.Join(root, "proc")}
	h := Host{Proc: proc.FS(p.dir), Groups: cgroup.Mounts{{Point: filepath.Join(root, "cgroup"), V2: true}}}
	p.process(1, 0, 1, "init", "/")
	p.process(10, 1, 10, "dockerd", "/system/docker", 100, 102)
	p.process(11, 1, 11, "containerd", "/system/docker", 110)
	p.process(12, 1, 12, "watcher", "/system/watcher", 201)
	p.process(13, 1, 13, "controller", "/system/controller", 205)
	p.process(20, 1, 20, "containerd-shim", "/system/docker")
	sockets := []sockdiag.Unix{
		{Inode: 100, Name: "/run/docker.sock"}, {Inode: 110, Name: "/run/containerd.sock"},
		{Inode: 101, Peer: 201, Name: "/run/docker.sock"}, // of the watcher
		{Inode: 300, Peer: 301, Name: "/run/other.sock"},
	}
	w, err := newStarts(h, func() ([]sockdiag.Unix, error) { return sockets, nil })
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]bool{"/run/docker.sock": true, "/run/containerd.sock": true}; !maps.Equal(w.names, want) {
		t.Fatalf("sockets of engines: %v", w.names)
	}
	w.sample()
	p.process(30, 1, 30, "docker", "/jobs", 202)
	sockets = append(sockets, sockdiag.Unix{Inode: 103, Peer: 202, Name: "/run/docker.sock"},
		sockdiag.Unix{Inode: 104, Peer: 102, Name: "/run/containerd.sock"}, // of dockerd
		sockdiag.Unix{Inode: 105, Peer: 205, Name: "/run/docker.sock"})     // of a process that ran before
	p.process(31, 20, 31, "runc", "/system/docker")
	p.process(32, 31, 32, "runc:[2:INIT]", "/containers/a")
	p.process(33, 20, 33, "true", "/containers/a")
	p.process(34, 20, 33, "true", "/containers/a") // its thread
	p.process(35, 33, 35, "sh", "/containers/a")   // its child
	w.sample()
	sockets = sockets[:4]
	w.sample()
	now := time.Now()
	got := map[string]float64{}
	for _, f := range w.facts([]levels{{at: now}, {at: now.Add(2 * time.Second)}}) {
		got[f.Name+f.Subject.Cgroup+f.Subject.Command] = f.Value
	}
	want := map[string]float64{fact.EnginesSeen: 2, fact.Starts: 1, fact.ClientBusy + "/jobsdocker": 1.0 / 3, fact.ClientBusy + "/system/controllercontroller": 1.0 / 3}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A program that makes a connection for each call is found in each of them, though all processes
// are searched only a few times.
func TestClientOfManyConnections(t *testing.T) {
	root := t.TempDir()
	p := fakeProc{t, filepath.Join(root, "proc")}
	h := Host{Proc: proc.FS(p.dir), Groups: cgroup.Mounts{{Point: filepath.Join(root, "cgroup"), V2: true}}}
	p.process(10, 1, 10, "dockerd", "/system/docker", 100)
	p.process(13, 1, 13, "jobs", "/system/jobs", 200)
	listener := sockdiag.Unix{Inode: 100, Name: "/run/docker.sock"}
	var sockets []sockdiag.Unix
	w, err := newStarts(h, func() ([]sockdiag.Unix, error) { return append(sockets, listener), nil })
	if err != nil {
		t.Fatal(err)
	}
	const samples = 3 * startsScans
	for n := range uint32(samples) {
		end := filepath.Join(p.dir, "13/fd/0")
		if err := errors.Join(os.Remove(end), os.Symlink(fmt.Sprintf("socket:[%d]", 201+n), end)); err != nil {
			t.Fatal(err)
		}
		sockets = []sockdiag.Unix{{Inode: 300 + n, Peer: 201 + n, Name: "/run/docker.sock"}}
		w.sample()
	}
	if got := w.busy["/system/jobs"]; got != samples {
		t.Errorf("seen in %v of %d samples", got, samples)
	}
}

// A process that runs this program is not taken for a client that starts containers.
func TestOwnProgram(t *testing.T) {
	other, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(other, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if own := ownProgram(Host{Proc: proc.Host}); !own(os.Getpid()) || own(cmd.Process.Pid) || own(0) {
		t.Error("processes of this program and of another are not told apart")
	}
}

// The kernel names the client of a real connection.
func TestUnixSockets(t *testing.T) {
	dialed, accepted := unixPair(t)
	own := map[uint32]bool{}
	for _, inode := range socketsOfProcess("/proc/self") {
		own[inode] = true
	}
	// The kernel's list (net/unix/diag.c) may lack a socket while others are closed.
	poll.Until(t, fmt.Sprintf("the socket %s has both ends in this process (%s)", accepted, dialed), func() bool {
		all, err := unixSockets()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(s sockdiag.Unix) bool { return s.Name == accepted && own[s.Inode] && own[s.Peer] })
	})
}

// unixPair connects two sockets of this process, and returns their names.
func unixPair(t *testing.T) (dialed, accepted string) {
	t.Helper()
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	c, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return c.LocalAddr().String(), ln.Addr().String()
}
