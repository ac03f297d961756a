// Package proc reads the files of processes in procfs (proc(5)).
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/platform/linux/kfile"
)

// FS is a mounted procfs. The error for a process that is gone is fs.ErrNotExist.
type FS string

// Host is the procfs of this process's own pid namespace.
const Host FS = "/proc"

// BootID identifies this boot of the host (random(4), boot_id).
func (p FS) BootID() (string, error) {
	b, err := kfile.Read(string(p)+"/sys/kernel/random/boot_id", 256)
	return strings.TrimSpace(string(b)), err
}

// No file read here is longer; those with a bound in the kernel are far
// shorter (status about 1.5 KiB, cgroup one line of up to a path per hierarchy).
const maxFile = 1 << 20

// Stat has the needed fields of /proc/pid/stat (proc_pid_stat(5)).
type Stat struct {
	Pid   int
	Comm  string // at most 15 bytes, any bytes that the process chooses
	State byte   // R, S, D, Z, T, t, X, I
	PPid  int
	Flags uint64 // PF_… of include/linux/sched.h
	Start uint64 // field 22: ticks after boot; with the pid it identifies a process uniquely
}

// Kernel reports whether the task is a thread of the kernel (PF_KTHREAD).
func (s Stat) Kernel() bool { return s.Flags&0x00200000 != 0 }

// Exiting reports whether the task has ended or is about to (PF_EXITING). The kernel sets it before the
// end of a container's init kills the container's other processes (kernel/exit.c, do_exit).
func (s Stat) Exiting() bool { return s.Flags&0x00000004 != 0 }

// ErrFormat means that a file differs from its manual page.
var ErrFormat = errors.New("unexpected format")

// ParseStat reads one line of /proc/pid/stat. The comm may contain spaces and
// parentheses; it ends at the last closing one.
func ParseStat(b []byte) (Stat, error) {
	before, rest, ok := bytes.Cut(b, []byte(" ("))
	end := bytes.LastIndexByte(rest, ')')
	if !ok || end < 0 {
		return Stat{}, fmt.Errorf("stat: %w: no command in parentheses", ErrFormat)
	}
	s := Stat{Comm: string(rest[:end])}
	f := bytes.Fields(rest[end+1:]) // from field 3 on
	if len(f) < 20 || len(f[0]) != 1 {
		return Stat{}, fmt.Errorf("stat: %w: %d fields after the command", ErrFormat, len(f))
	}
	s.State = f[0][0]
	var err [4]error
	s.Pid, err[0] = strconv.Atoi(string(before))
	s.PPid, err[1] = strconv.Atoi(string(f[1]))
	s.Start, err[2] = strconv.ParseUint(string(f[19]), 10, 64)
	s.Flags, err[3] = strconv.ParseUint(string(f[6]), 10, 64)
	if e := errors.Join(err[:]...); e != nil {
		return Stat{}, fmt.Errorf("stat: %w: %w", ErrFormat, e)
	}
	return s, nil
}

// Stat reads /proc/pid/stat.
func (p FS) Stat(pid int) (Stat, error) {
	b, err := p.read(pid, "stat")
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(b)
}

// Field returns the value of a line "name: value" of a file such as /proc/pid/status.
func Field(text []byte, name string) (value string, found bool) {
	for line := range bytes.Lines(text) {
		if v, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			return string(bytes.TrimSpace(v)), true
		}
	}
	return "", false
}

// ParseNSpid finds the pids of a process in /proc/pid/status, from the
// namespace of the procfs down to the process's own.
func ParseNSpid(status []byte) ([]int, error) {
	field, _ := Field(status, "NSpid")
	var pids []int
	for f := range strings.FieldsSeq(field) {
		n, err := strconv.Atoi(f)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("status: NSpid: %w: %q", ErrFormat, f)
		}
		pids = append(pids, n)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("status: %w: no NSpid", ErrFormat)
	}
	return pids, nil
}

// NSpid is the process's pid in each pid namespace, from this one down to its own.
// One entry means that it is in this namespace; a last entry of 1 means that it is
// the init of its own. A zombie has only 0s.
func (p FS) NSpid(pid int) ([]int, error) {
	b, err := p.read(pid, "status")
	if err != nil {
		return nil, err
	}
	return ParseNSpid(b)
}

// ParseKilled reports from /proc/pid/status whether SIGKILL is pending for a process
// or its main thread.
func ParseKilled(status []byte) (bool, error) {
	const sigkill = 1 << (9 - 1)
	for _, name := range []string{"SigPnd", "ShdPnd"} {
		field, ok := Field(status, name)
		if !ok {
			return false, fmt.Errorf("status: %w: no pending signals", ErrFormat)
		}
		mask, err := strconv.ParseUint(field, 16, 64)
		if err != nil {
			return false, fmt.Errorf("status: %s: %w: %q", name, ErrFormat, field)
		}
		if mask&sigkill != 0 {
			return true, nil
		}
	}
	return false, nil
}

// Killed reports whether SIGKILL is pending for the process. The process dies when it
// runs next; one that is frozen on cgroup v1 only when it is thawed.
func (p FS) Killed(pid int) (bool, error) {
	b, err := p.read(pid, "status")
	if err != nil {
		return false, err
	}
	return ParseKilled(b)
}

// Blocked reports whether a thread of the process is in state D. The thread may hold the lock of
// the process's memory, and then a read of its cmdline or maps blocks, too (access_remote_vm,
// mm/memory.c).
func (p FS) Blocked(pid int) bool {
	tasks, err := os.ReadDir(p.path(pid, "task"))
	if err != nil {
		return false // it has ended
	}
	return slices.ContainsFunc(tasks, func(t fs.DirEntry) bool {
		b, err := kfile.Read(p.path(pid, "task/"+t.Name()+"/stat"), maxFile)
		s, err2 := ParseStat(b)
		return err == nil && err2 == nil && s.State == 'D'
	})
}

// Cgroup reads /proc/pid/cgroup; internal/platform/linux/cgroup parses it.
func (p FS) Cgroup(pid int) ([]byte, error) { return p.read(pid, "cgroup") }

// Cmdline is the argument vector; empty for kernel threads and zombies.
func (p FS) Cmdline(pid int) ([]string, error) {
	b, err := p.read(pid, "cmdline")
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"), nil
}

// Exe is the path of the executable, in the process's mount namespace.
func (p FS) Exe(pid int) (string, error) {
	return os.Readlink(p.path(pid, "exe"))
}

// Where is the kernel function in which a process sleeps: the top of its kernel stack
// if that may be read, else its wchan, else "".
func (p FS) Where(pid int) string {
	if up := kernelPath(p.path(pid, "")); len(up) > 0 {
		return up[0]
	}
	return ""
}

// KernelPath returns the kernel functions in which a thread waits, the innermost first: its stack
// (proc_pid_stack(5)) if that may be read, else its wchan alone, else nothing.
func (p FS) KernelPath(pid, tid int) []string {
	return kernelPath(p.path(pid, "task/"+strconv.Itoa(tid)))
}

func kernelPath(dir string) []string {
	var up []string
	b, _ := kfile.Read(dir+"/stack", maxFile) // nothing without the right to read it
	for line := range strings.Lines(string(b)) {
		// [<0>] request_wait_answer+0x12c/0x200 [fuse]
		_, symbol, _ := strings.Cut(line, "] ")
		if symbol, _, _ = strings.Cut(symbol, "+"); symbol != "" {
			up = append(up, symbol)
		}
	}
	if len(up) > 0 {
		return up
	}
	if b, err := kfile.Read(dir+"/wchan", maxFile); err == nil && len(b) > 0 && string(b) != "0" {
		return []string{string(b)}
	}
	return nil
}

// Ancestors returns the pids of a process's ancestors: its parent first, 1 last. A
// parent outside the pid namespace of the procfs ends the list.
func (p FS) Ancestors(pid int) ([]int, error) {
	var up []int
	for len(up) < 1000 { // a loop can only come from pids that are reused while reading
		s, err := p.Stat(pid)
		switch {
		case errors.Is(err, fs.ErrNotExist) && len(up) > 0:
			return up, nil // it has ended, so it is no longer an ancestor
		case err != nil:
			return nil, err
		case s.PPid == 0:
			return up, nil
		}
		up = append(up, s.PPid)
		pid = s.PPid
	}
	return up, nil
}

// Pids lists all processes.
func (p FS) Pids() ([]int, error) {
	d, err := os.Open(string(p))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (p FS) path(pid int, file string) string {
	return string(p) + "/" + strconv.Itoa(pid) + "/" + file
}

func (p FS) read(pid int, file string) ([]byte, error) {
	return kfile.Read(p.path(pid, file), maxFile)
}
