package guardian

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/kill"
)

// find returns the engine's daemons: dockerd first, or containerd alone.
func (e *Engine) find(targets []*kill.Target) ([]*pidfd.Process, error) {
	gone := slices.ContainsFunc(e.daemons, (*pidfd.Process).Exited)
	if len(e.daemons) > 0 && !gone {
		return e.daemons, nil
	}
	release(e.daemons)
	e.daemons = nil
	protected, err := kill.Protected()
	if err != nil {
		return nil, err
	}
	engine, err := serverOf(e.Socket, "dockerd", protected)
	if errors.Is(err, errOtherProgram) {
		// containerd can be the engine itself, with no other daemon behind it.
		if engine, err := serverOf(e.Socket, "containerd", protected); err == nil {
			e.daemons = append(e.daemons, engine)
			return e.daemons, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find the engine: %w", err)
	}
	e.daemons = append(e.daemons, engine)
	containerd, err := containerdOf(engine.Pid(), targets, protected)
	if err != nil {
		return nil, fmt.Errorf("find the engine's containerd: %w", err)
	}
	if containerd != nil {
		e.daemons = append(e.daemons, containerd)
	}
	return e.daemons, nil
}

// errOtherProgram means that the process runs another program than expected.
var errOtherProgram = errors.New("it is another program")

// serverOf opens the process that serves a unix socket, if its executable has the
// name.
func serverOf(socket, name string, protected map[int]bool) (*pidfd.Process, error) {
	pid, err := listenerOf(socket)
	if err != nil {
		return nil, err
	}
	if pid == 1 {
		// Socket activation: systemd called listen(2). The daemon has the
		// same socket among its descriptors.
		if pid, err = holderOf(socket, name); err != nil {
			return nil, err
		}
	}
	if pid == 0 {
		return nil, fmt.Errorf("what serves %s is outside this pid namespace", socket)
	}
	return verified(pid, name, protected)
}

// verified opens a process if its executable has the name.
func verified(pid int, name string, protected map[int]bool) (*pidfd.Process, error) {
	if protected[pid] {
		return nil, fmt.Errorf("process %d must not be stopped", pid)
	}
	p, err := pidfd.Open(pid)
	if err != nil {
		return nil, err
	}
	if !isNamed(pid, name) {
		p.Close()
		return nil, fmt.Errorf("process %d is not %s: %w", pid, name, errOtherProgram)
	}
	return p, nil
}

// isNamed compares the name of a process's executable. A process can change its comm,
// so that does not count. An executable that an upgrade has replaced counts.
func isNamed(pid int, name string) bool {
	exe, err := proc.Host.Exe(pid)
	return err == nil && path.Base(strings.TrimSuffix(exe, " (deleted)")) == name
}

// listenerOf is the pid that called listen(2) on the socket, SO_PEERCRED in
// socket(7), unix(7).
func listenerOf(socket string) (int, error) {
	// The connection waits for no server: package net connects without blocking, and
	// connect(2) then fails with EAGAIN if the backlog is full (unix_stream_connect,
	// net/unix/af_unix.c).
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(e, err); err != nil {
		return 0, fmt.Errorf("find the server of %s: %w", socket, err)
	}
	return int(cred.Pid), nil
}

// holderOf is the process other than init of that name that has the listening
// socket open.
func holderOf(socket, name string) (int, error) {
	table, err := kfile.Read("/proc/net/unix", 64<<20)
	if err != nil {
		return 0, err
	}
	inodes := ListeningInodes(table, sameFile(socket))
	pids, err := proc.Host.Pids()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if pid != 1 && isNamed(pid, name) && holds(pid, inodes) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no %s serves %s: init does", name, socket)
}

// sameFile compares paths: /var/run is a link to /run.
func sameFile(socket string) func(string) bool {
	want, err := filepath.EvalSymlinks(socket)
	return func(other string) bool {
		got, e := filepath.EvalSymlinks(other)
		return other == socket || err == nil && e == nil && got == want
	}
}

// ListeningInodes picks the inodes of listening sockets with a matching path out
// of /proc/net/unix, proc_pid_net(5):
//
//	Num RefCount Protocol Flags Type St Inode Path
func ListeningInodes(table []byte, match func(path string) bool) []uint64 {
	const acceptConn = 1 << 16 // __SO_ACCEPTCON, include/linux/net.h
	var inodes []uint64
	for line := range bytes.Lines(table) {
		f := strings.Fields(string(line))
		if len(f) != 8 {
			continue
		}
		flags, err1 := strconv.ParseUint(f[3], 16, 64)
		inode, err2 := strconv.ParseUint(f[6], 10, 64)
		if err1 == nil && err2 == nil && flags&acceptConn != 0 && match(f[7]) {
			inodes = append(inodes, inode)
		}
	}
	return inodes
}

// holds reports whether a process has one of the sockets open.
func holds(pid int, inodes []uint64) bool {
	dir := fmt.Sprintf("%s/%d/fd", proc.Host, pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		to, err := os.Readlink(dir + "/" + fd.Name())
		if err != nil {
			continue
		}
		for _, inode := range inodes {
			if to == "socket:["+strconv.FormatUint(inode, 10)+"]" {
				return true
			}
		}
	}
	return false
}

// containerdOf opens the containerd behind an engine: the one that the shims report
// to, else the engine's child. It returns nil if there is none.
func containerdOf(engine int, targets []*kill.Target, protected map[int]bool) (*pidfd.Process, error) {
	for _, t := range targets {
		if t.Shim() == nil {
			continue
		}
		args, err := proc.Host.Cmdline(t.Shim().Pid())
		if err != nil {
			continue // this shim has just ended
		}
		if i := slices.Index(args, "-address"); i >= 0 && i+1 < len(args) {
			if p, err := serverOf(args[i+1], "containerd", protected); err == nil {
				return p, nil
			}
		}
		break // the other shims have the same one
	}
	pids, err := proc.Host.Pids()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if s, err := proc.Host.Stat(pid); err == nil && s.PPid == engine && isNamed(pid, "containerd") {
			return verified(pid, "containerd", protected)
		}
	}
	return nil, nil
}
