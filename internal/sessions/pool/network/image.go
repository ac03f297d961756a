package network

import (
	"archive/tar"
	"context"
	"encoding/json"
	"io"
	"runtime"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/holder"
)

// Image is the image of holders. The pool loads it into the engine if it is missing; it
// is never pulled. Its number increases when its content changes.
const Image = "holdfast-holder:1"

// program is the image's only file.
const program = "holder"

// load loads the image into the engine.
func (p *Pool) load(ctx context.Context) error {
	archive, err := archive(runtime.GOARCH)
	if err != nil {
		return err
	}
	return p.deps.Engine.Load(ctx, archive)
}

// archive returns the image in the format of `docker save`. Its bytes are always the
// same.
func archive(arch string) (io.Reader, error) {
	code, err := holder.Program(arch)
	if err != nil {
		return nil, err
	}
	return engine.ProgramImage(Image, &tar.Header{Name: program, Mode: 0o555}, code, v1.ConfigFile{
		OS: "linux", Architecture: arch, Config: v1.Config{
			Entrypoint: []string{"/" + program}, Labels: map[string]string{Label: "image"},
			StopSignal: "SIGKILL", // as pid 1 the program ignores other signals (pid_namespaces(7))
		},
	})
}

// runtimeCalls are the system calls of runc's init between the load of the profile and
// the program: it is a program in Go that waits at a pipe for the start, and runs the
// program (runc, libcontainer/standard_init_linux.go).
func runtimeCalls() []string {
	return []string{
		"arch_prctl", "brk", "capget", "capset", "chdir", "clone", "clone3", "close_range", "dup3",
		"epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_wait", "eventfd2", "execve", "execveat", "exit", "faccessat", "faccessat2",
		"fchdir", "fcntl", "fstat", "fstatfs", "futex", "getcwd", "getdents64", "getpid", "getppid", "getrandom", "gettid", "getuid",
		"lseek", "madvise", "membarrier", "mmap", "mprotect", "munmap", "nanosleep", "newfstatat", "open", "openat", "openat2", "pipe2",
		"ppoll", "prctl", "pread64", "prlimit64", "read", "readlinkat", "restart_syscall", "rseq", "rt_sigaction", "rt_sigprocmask",
		"rt_sigreturn", "sched_getaffinity", "sched_yield", "set_robust_list", "set_tid_address", "setgid", "setgroups", "setuid",
		"sigaltstack", "stat", "statfs", "statx", "tgkill", "timer_create", "timer_delete", "timer_settime", "uname", "write",
	}
}

// profile is the seccomp profile of holders, as the engine takes it: all other calls fail
// with EPERM.
func profile() ([]byte, error) {
	type rule struct {
		Names  []string `json:"names"`
		Action string   `json:"action"`
	}
	return json.Marshal(struct {
		Default  string `json:"defaultAction"`
		Syscalls []rule `json:"syscalls"`
	}{"SCMP_ACT_ERRNO", []rule{{slices.Concat(holder.Calls(), runtimeCalls()), "SCMP_ACT_ALLOW"}}})
}
