package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
)

// Labels of everything that a job makes.
const (
	LabelJob   = "holdfast.job"       // the job's id
	LabelOwner = "holdfast.job.owner" // the process that runs it
	LabelIndex = "holdfast.job.index" // which of the parallel runs
	LabelName  = "holdfast.job.name"  // the container's name in the job
)

// nameOfAll begins the name of every container and network of a job.
func nameOfAll(id string) string { return "holdfast-" + id + "-" }

// Owner is the process that runs a job, told from all others: a pid means one
// process only together with its start time, its pid namespace and the boot.
type Owner struct {
	Pid   int
	Start uint64 // ticks after boot, proc_pid_stat(5) field 22
	Space string // the pid namespace, as its link under /proc/self/ns says
	Boot  string // random(4), boot_id
}

// Self is this process.
func Self() (Owner, error) {
	fail := func(err error) (Owner, error) {
		return Owner{}, fmt.Errorf("find out which process this is: %w", err)
	}
	stat, err := proc.Host.Stat(os.Getpid())
	if err != nil {
		return fail(err)
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return fail(err)
	}
	boot, err := kfile.Read("/proc/sys/kernel/random/boot_id", 256)
	if err != nil {
		return fail(err)
	}
	return Owner{Pid: stat.Pid, Start: stat.Start, Space: space, Boot: strings.TrimSpace(string(boot))}, nil
}

// String is the value of LabelOwner; parseOwner reads it.
func (o Owner) String() string {
	return fmt.Sprintf("%d %d %s %s", o.Pid, o.Start, o.Space, o.Boot)
}

func parseOwner(s string) (Owner, error) {
	f := strings.Fields(s)
	if len(f) != 4 {
		return Owner{}, fmt.Errorf("%q names no owner", s)
	}
	pid, err1 := strconv.Atoi(f[0])
	if err1 == nil && pid <= 0 { // kill(2) has other meanings for those
		err1 = fmt.Errorf("%q names no owner: no process has this pid", s)
	}
	start, err2 := strconv.ParseUint(f[1], 10, 64)
	return Owner{Pid: pid, Start: start, Space: f[2], Boot: f[3]}, errors.Join(err1, err2)
}

// fate is what can be said of an owner from here.
type fate int

const (
	alive   fate = iota
	dead         // seen: its pid is free, or another process's
	unknown      // it is, or was, somewhere that cannot be looked into, or is hidden
)

// fateOf looks for other from self's place. Another pid namespace is another
// container that uses the same engine; another boot is an earlier one of this
// host, or another host's.
func (o Owner) fateOf(other Owner) fate {
	if other.Boot != o.Boot || other.Space != o.Space {
		return unknown
	}
	stat, err := proc.Host.Stat(other.Pid)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Other users' processes are not there either where /proc is mounted
		// with hidepid=2 (proc(5)). kill(2) knows them.
		if errors.Is(syscall.Kill(other.Pid, 0), syscall.ESRCH) {
			return dead
		}
		return unknown
	case err != nil:
		return unknown
	case stat.Start != other.Start || stat.State == 'Z' || stat.State == 'X':
		return dead
	}
	return alive
}
