package doctor

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Roles of the test program: each removes a privilege or feature and executes another
// program.
const (
	roleDeny = "deny" // system calls, by seccomp: bpf,perf_event_open
	roleHide = "hide" // directories, below an empty file system: /sys/kernel/tracing
	roleDrop = "drop" // capabilities, by their numbers
)

// deny makes system calls fail as in a Docker container.
func deny(names string) error {
	runtime.LockOSThread()
	numbers := map[string]uint32{"bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN}
	const number = 0 // offset of nr in struct seccomp_data, seccomp(2)
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number}}
	for name := range strings.SplitSeq(names, ",") {
		nr, ok := numbers[name]
		if !ok {
			return fmt.Errorf("system call %q", name)
		}
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

// hide covers directories in a mount namespace of its own.
func hide(dirs string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for dir := range strings.SplitSeq(dirs, ",") {
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("cover %s: %w", dir, err)
		}
	}
	return nil
}

// drop removes capabilities permanently: programs that root executes do not regain them,
// capabilities(7).
func drop(names string) error {
	runtime.LockOSThread()
	for name := range strings.SplitSeq(names, ",") {
		nr, ok := map[string]uintptr{"sys_admin": unix.CAP_SYS_ADMIN, "bpf": unix.CAP_BPF, "perfmon": unix.CAP_PERFMON}[name]
		if !ok {
			return fmt.Errorf("capability %q", name)
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, nr, 0, 0, 0); err != nil {
			return err
		}
	}
	return nil
}
