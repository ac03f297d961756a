package kill

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"holdfast"
	"holdfast/internal/platform/linux/proc"
)

// maxReasons bounds how many processes a reason describes.
const maxReasons = 4

// leftover describes what is left of a container that could not be seen dead, and
// why.
func (t *Target) leftover() holdfast.Leftover {
	l := holdfast.Leftover{ContainerID: t.ID, Name: t.Name, Key: t.Key}
	var why []string
	for _, g := range t.groups {
		pids, err := g.Procs()
		if err != nil {
			why = append(why, err.Error())
		}
		l.Pids = append(l.Pids, pids...)
		if frozen, err := g.Frozen(); err == nil && frozen && !g.V2 {
			reason := "its cgroup is frozen"
			if g.FreezerAbove() {
				reason = "a cgroup above its own is frozen"
			}
			why = append(why, reason)
		}
	}
	if !t.init.Exited() {
		l.Pids = append(l.Pids, t.init.Pid())
	}
	slices.Sort(l.Pids)
	l.Pids = slices.Compact(l.Pids)
	for _, pid := range l.Pids[:min(len(l.Pids), maxReasons)] {
		why = append(why, t.whyAlive(pid))
	}
	if n := len(l.Pids) - maxReasons; n > 0 {
		why = append(why, fmt.Sprintf("and %d more", n))
	}
	if len(why) == 0 {
		why = []string{"it died after the deadline"}
	}
	l.Reason = strings.Join(why, "; ")
	return l
}

// whyAlive describes a process that outlives SIGKILL.
func (t *Target) whyAlive(pid int) string {
	if pid == 0 {
		return "a process outside our pid namespace"
	}
	s, err := proc.Host.Stat(pid)
	if err != nil {
		return fmt.Sprintf("process %d died after the deadline", pid)
	}
	what := fmt.Sprintf("process %d (%s)", pid, s.Comm)
	where := cmp.Or(proc.Host.Where(pid), "an unknown kernel function")
	switch {
	case pid == t.init.Pid() && t.alone && where == "zap_pid_ns_processes":
		return what + " waits for a zombie of its pid namespace whose parent, outside, does not reap it"
	case s.State == 'D':
		return fmt.Sprintf("%s is in uninterruptible sleep (D) in %s", what, where)
	case s.State == 'Z':
		return what + " is a zombie with threads that have not ended"
	case s.State == 't':
		return what + " is stopped by a debugger (t)"
	}
	return fmt.Sprintf("%s is in state %c in %s", what, s.State, where)
}
