package rule

import (
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	stuckKnown  = 5.0  // s without progress, if a server does not answer or a file system is frozen
	stuckOther  = 20.0 // s, if it may be a slow disk
	stuckOnHost = 5    // tasks of no container from which it is more than a notice
	lockedLong  = 0.3  // of the looks
	// manySocketWaits is more threads than wait by chance at both ends.
	manySocketWaits = 3
)

// stuckTasks finds tasks that wait in state D for the whole observation.
func stuckTasks() Rule {
	return Rule{
		Name:   "stuck-tasks",
		Signal: "threads in state D at both ends of the observation that have not run in between (schedstat), with their path through the kernel. Left out are threads of the kernel, parents of a vfork, frozen groups and processes that dump core. File locks for which processes wait while a signal has stopped the holder, and once a second those for which containers wait while another control group holds them (/proc/locks). Threads that wait for room in the queue of a Unix socket (wchan unix_wait_for_peer), and those that have waited for room in a pipe all the time (pipe_write)",
		Threshold: "one thread of a container, 5 threads outside containers; fewer are a notice. If the path shows that a server of a file system does not answer, or that a file system is frozen, for 5 s, " +
			"otherwise for 20 s. A lock with a stopped holder and a waiting process at both ends. A lock of another control group for which a container waited at 30 % of the looks: a notice. Processes that wait for each other's locks at the first look and the last. Three threads of a container or service that wait for room in a Unix socket's queue at both ends. One that has waited for room in a pipe: a notice",
		Why: "each such task adds one to the load average, and a container with one cannot be stopped while it waits, unless the wait can be killed. A request of a working disk ends in milliseconds, and the thread then runs; " +
			"on a disk that is throttled or overloaded it may take seconds. A daemon of the host that always waits in this state harms no container. The agent looks once a minute, and only while the load average is higher than the number of running tasks",
		Source: "proc_pid_stat(5), proc_loadavg(5); kernel/freezer.c, kernel/sched/loadavg.c. The thresholds are judgements: the kernel warns after 120 s (sysctl/kernel.rst, hung_task_timeout_secs)",
		Needs:  []string{fact.StuckSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			load, loadKnown := s.Host(fact.HostLoad)
			for _, f := range s.Of(fact.Stuck) {
				w := fact.WaitOf(f.Subject.Kernel)
				if f.Over < stuckOther && (!w.Known() || f.Over < stuckKnown) {
					continue
				}
				what := f.Subject.Device
				f.Subject.Device = ""
				x := Finding{
					Severity: Warning,
					Title:    fmt.Sprintf("%s waited for %s without progress, and cannot be interrupted", tasks(f.Value), w.What),
					Evidence: []Evidence{{"tasks in state D that have not run for " + number(f.Over) + " s", number(f.Value), "0"}},
					Culprit:  f.Subject,
					Cures:    stuckCures(w, what, f.Subject.Pid),
				}
				if fact.ContainerID(f.Subject.Cgroup) == "" && f.Value < stuckOnHost {
					x.Severity = Notice
				}
				if what != "" {
					x.Evidence = append(x.Evidence, Evidence{"they wait for", what, "-"})
				}
				if loadKnown {
					x.Evidence = append(x.Evidence, Evidence{"load average, to which each adds one", fmt.Sprintf("%.1f", load), "-"})
				}
				found = append(found, x)
			}
			return slices.Concat(found, waits(s), heldLocks(s))
		},
	}
}

// waits finds programs that wait for what another one does not do. The command of a cure takes the pid of
// the named process.
func waits(s *fact.Set) (found []Finding) {
	for _, w := range []struct {
		fact        string
		least       float64
		severity    Severity
		title, what string
		cure        Cure
		victim      bool // the group of the named process is the victim
	}{
		// A job in the background that reads from its terminal, or one that a debugger or an operator has stopped.
		{fact.LockHeld, 0, Warning, "processes wait for a file lock whose holder is stopped by a signal", "processes that wait for the lock",
			Cure{What: "Continue the process, or end it.", Command: "kill -CONT %d"}, false},
		{fact.LockCycle, 0, Warning, "processes wait for each other's file locks, and will do so until one of them is ended", "processes in the cycle",
			Cure{What: "End one of the processes. The program has to take several locks always in the same order.", Command: "grep -A1 ' %[1]d ' /proc/locks; kill %[1]d"}, false},
		{fact.SocketWaits, manySocketWaits, Warning, "threads wait until the reader of a Unix socket takes a datagram, such as a syslog daemon", "threads that waited at both ends",
			Cure{What: "Find the socket's reader, often /dev/log, and why it does not read.", Command: "nsenter -t %d -n ss -xap"}, true},
		{fact.PipeWaits, 0, Notice, "a program waits for the reader of a full pipe, which has read nothing", "threads that waited for the whole time",
			Cure{What: "Find the reader, which has a descriptor of the same pipe. That of a container's output is the engine or its shim.", Command: "ls -l /proc/%d/fd | grep pipe"}, false},
	} {
		for _, f := range s.Of(w.fact) {
			if f.Value < w.least {
				continue
			}
			cure := Cure{What: w.cure.What, Command: fmt.Sprintf(w.cure.Command, f.Subject.Pid)}
			x := Finding{Severity: w.severity, Title: w.title, Evidence: []Evidence{{w.what, number(f.Value), "0"}}, Culprit: f.Subject, Cures: []Cure{cure}}
			if w.victim {
				x.Victims = []fact.Subject{{Cgroup: f.Subject.Cgroup}}
			}
			found = append(found, x)
		}
	}
	return found
}

// heldLocks finds containers that wait for a file lock that another container or a program of the host holds.
func heldLocks(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.LockWaits) {
		if f.Value < lockedLong {
			continue
		}
		victim := fact.Subject{Cgroup: f.Subject.Device}
		f.Subject.Device = ""
		found = append(found, Finding{
			Severity: Notice, Title: "a container waits for a file lock that is held outside it",
			Evidence: []Evidence{{"looks at which it waited", percent(f.Value), "under 30 %"}},
			Culprit:  f.Subject,
			Victims:  []fact.Subject{victim},
			Cures: []Cure{
				{What: "Find the file. A program may hold a lock on purpose, such as a leader.", Command: fmt.Sprintf("grep -A1 ' %d ' /proc/locks; ls -l /proc/%d/fd", f.Subject.Pid, f.Subject.Pid)},
			},
		})
	}
	return found
}

func tasks(n float64) string {
	if n == 1 {
		return "a task"
	}
	return number(n) + " tasks"
}

// stuckCures returns what ends a wait.
func stuckCures(w fact.Wait, what string, pid int) []Cure {
	look := Cure{What: "See what the task waits for.", Command: fmt.Sprintf("cat /proc/%d/stack; dmesg | tail", pid)}
	switch {
	case w.Frozen:
		return []Cure{{What: "Thaw the file system. A snapshot that did not end has frozen it.", Command: "fsfreeze --unfreeze MOUNT"}, look}
	case len(w.Types) > 0 && strings.HasPrefix(w.Types[0], "fuse"):
		return []Cure{
			{What: "Restart the program that serves the file system."},
			{What: "Or end all its requests with an error; NN is the mount's device, 0:NN of mountinfo.", Command: fmt.Sprintf("grep fuse /proc/%d/mountinfo; echo 1 >/sys/fs/fuse/connections/NN/abort", pid)},
		}
	case len(w.Types) > 0:
		return []Cure{
			{What: "Restore the server or the network to it; the tasks then continue."},
			{What: "Or give the mount up: requests end with an error, and data that is not written is lost.", Command: "umount --force --lazy MOUNT"},
		}
	}
	return []Cure{look}
}
