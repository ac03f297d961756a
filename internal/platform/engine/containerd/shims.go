package containerd

import (
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
)

// tick is the unit of a process's start time: USER_HZ is 100 on all supported
// architectures (proc_pid_stat(5)).
const tick = 10 * time.Millisecond

// oldShims returns this namespace's shims that have no child processes and are older
// than youngest, by their container's id. containerd 1.6 leaves one if the client
// that requested a task was killed during the call.
func (e *Engine) oldShims() (map[string]*pidfd.Process, error) {
	pids, err := proc.Host.Pids()
	if err != nil {
		return nil, err
	}
	found := map[string]*pidfd.Process{}
	parents := map[int]bool{}
	for _, pid := range pids {
		st, err := proc.Host.Stat(pid)
		if err != nil {
			continue // it has ended
		}
		parents[st.PPid] = true
		id := e.shimOf(pid)
		if id == "" || time.Duration(boottime.Now())-time.Duration(st.Start)*tick < youngest {
			continue
		}
		if p, err := pidfd.OpenStarted(pid, st.Start); err == nil {
			found[id] = p
		}
	}
	for id, p := range found {
		if parents[p.Pid()] {
			p.Close()
			delete(found, id)
		}
	}
	return found, nil
}

// shimOf is the id of the container for which containerd has started the process as a
// shim, or "" if the process is not a shim of this namespace.
func (e *Engine) shimOf(pid int) string {
	args, err := proc.Host.Cmdline(pid)
	if err != nil || len(args) == 0 || !strings.HasPrefix(path.Base(args[0]), "containerd-shim") {
		return ""
	}
	flag := func(name string) string {
		if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
			return args[i+1]
		}
		return ""
	}
	if id := flag("-id"); flag("-namespace") == e.cfg.Namespace && flag("-address") == e.socket && fullID().MatchString(id) {
		return id
	}
	return ""
}

// endShims ends the shims without a container, and closes all handles.
func endShims(shims map[string]*pidfd.Process, had map[string]bool) error {
	var failed error
	for id, p := range shims {
		if !had[id] {
			if err := p.Signal(unix.SIGKILL); err != nil && !p.Exited() {
				failed = err
			}
		}
		p.Close()
	}
	return failed
}
