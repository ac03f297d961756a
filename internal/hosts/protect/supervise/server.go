package supervise

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// server is one process of the server.
type server struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
	code  int           // then its exit code, 128 + n for signal n
}

// start starts the server in a process group of its own.
func (s *supervisor) start() (*server, error) {
	cmd := exec.Command(s.path, s.Command[1:]...)
	cmd.Args[0] = s.Command[0]
	cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
	cmd.Env = environment(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.User != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: s.User.UID, Gid: s.User.GID}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.starts++
	v := &server{cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(v.ended)
		_ = cmd.Wait() // the state says how it has ended
		v.code = cmd.ProcessState.ExitCode()
		if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			v.code = 128 + int(w.Signal())
		}
	}()
	s.Log.Info("run: the server is started", "pid", cmd.Process.Pid)
	return v, nil
}

// killGroup kills what a server has left in its process group: workers that still have
// its listeners open.
func (v *server) killGroup() { _ = unix.Kill(-v.cmd.Process.Pid, unix.SIGKILL) } // there may be none

// ours are the variables of the service manager for this process.
var ours = [...]string{"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_", "FDSTORE="}

// environment is the server's environment. Go's servers listen with Multipath TCP unless
// they are told not to, and such a listener cannot have a spare.
func environment(env []string) []string {
	debug := "GODEBUG=multipathtcp=0"
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		if settings, ok := strings.CutPrefix(v, "GODEBUG="); ok {
			debug = "GODEBUG=multipathtcp=0," + settings // the last of one name is used
			return true
		}
		return slices.ContainsFunc(ours[:], func(prefix string) bool { return strings.HasPrefix(v, prefix) })
	})
	return append(env, debug)
}
