package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/deathsig"
)

// marker is the environment variable with the stage of a process: stageInit for pid 1, or
// the name of the lab's pid namespace for a process inside it.
const (
	marker    = "HOLDFAST_LAB"
	stageInit = "init"
)

// forwarded are the signals by which users and service managers end a program.
var forwarded = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT}

// Inside reports whether this process runs in a lab. A process that the lab's
// program starts is inside too.
func Inside() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && os.Getenv(marker) == ns
}

// Reenter runs this program again in a lab, with the same arguments and standard files. It
// returns the exit code of that program; 128 + n means that signal n ended it. Reenter
// passes SIGINT, SIGTERM, SIGHUP and SIGQUIT on. It needs root. The program in the lab has
// a process group of its own, so it cannot read from a terminal.
//
// The caller exits with the code. If err is not nil, the lab did not start.
func Reenter() (exitCode int, err error) {
	if Inside() {
		return 1, errors.New("enter a lab: this process is in one")
	}
	if os.Getenv(marker) == stageInit && os.Getpid() == 1 {
		return runInit()
	}
	if os.Geteuid() != 0 {
		return 1, holdfast.WithHint(errors.New("a private engine needs root"), "run it with sudo")
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = withMarker(stageInit)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Setpgid:    true, // passOn forwards ^C of a terminal, so that it arrives once
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	child, err := deathsig.Start(cmd, unix.SIGKILL)
	if err != nil {
		return 1, holdfast.WithHint(fmt.Errorf("start a program in new namespaces: %w", err),
			"the kernel or a container around this program forbids new pid, mount or network namespaces")
	}
	ended := make(chan struct{})
	go passOn(signals, cmd.Process.Pid, ended)
	err = <-child
	close(ended)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return exitStatus(exit.Sys().(syscall.WaitStatus)), nil
	}
	if err != nil {
		return 1, fmt.Errorf("wait for the program in the lab: %w", err)
	}
	return 0, nil
}

// passOn forwards signals to pid until ended is closed.
func passOn(signals <-chan os.Signal, pid int, ended <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			// An error means that it has just ended.
			_ = unix.Kill(pid, s.(syscall.Signal))
		case <-ended:
			return
		}
	}
}

// exitStatus returns a wait status as a shell reports it.
func exitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// withMarker returns the environment with the marker set to value.
func withMarker(value string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, marker+"=") {
			env = append(env, kv)
		}
	}
	return append(env, marker+"="+value)
}
