package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"holdfast/internal/platform/linux/proc"
)

// Labels of everything that a job makes.
const (
	LabelJob   = "holdfast.job"       // the job's id
	LabelOwner = "holdfast.job.owner" // the process that runs it
	LabelIndex = "holdfast.job.index" // index of the parallel run
	LabelName  = "holdfast.job.name"  // the container's name in the job
)

// nameOfAll returns the prefix of the names of all containers and networks of a
// job.
func nameOfAll(id string) string { return "holdfast-" + id + "-" }

// Owner identifies the process that runs a job. A pid is unique only together
// with the start time, the pid namespace and the boot.
type Owner struct {
	Pid   int
	Start uint64 // ticks after boot, proc_pid_stat(5) field 22
	Space string // the pid namespace, the target of the link in /proc/self/ns
	Boot  string // random(4), boot_id
}

// Self returns the Owner of this process.
func Self() (Owner, error) {
	fail := func(err error) (Owner, error) {
		return Owner{}, fmt.Errorf("identify this process: %w", err)
	}
	stat, err := proc.Host.Stat(os.Getpid())
	if err != nil {
		return fail(err)
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return fail(err)
	}
	boot, err := proc.Host.BootID()
	if err != nil {
		return fail(err)
	}
	return Owner{Pid: stat.Pid, Start: stat.Start, Space: space, Boot: boot}, nil
}

// String returns the value of LabelOwner; parseOwner reads it.
func (o Owner) String() string {
	return fmt.Sprintf("%d %d %s %s", o.Pid, o.Start, o.Space, o.Boot)
}

func parseOwner(s string) (o Owner, err error) {
	_, err = fmt.Sscanf(s, "%d %d %s %s", &o.Pid, &o.Start, &o.Space, &o.Boot)
	// kill(2) treats pids that are not positive specially.
	if err != nil || o.Pid <= 0 || o.String() != s {
		return Owner{}, fmt.Errorf("%q is not an owner", s)
	}
	return o, nil
}

// fate is what this process can determine about an owner.
type fate int

const (
	alive   fate = iota
	dead         // checked: the pid is free, or belongs to another process
	unknown      // not visible: another pid namespace or boot, or hidden
)

// fateOf determines the fate of other as seen from o. Another pid namespace means
// another container that uses the same engine. Another boot means an earlier boot
// of this host, or another host.
func (o Owner) fateOf(other Owner) fate {
	if other.Boot != o.Boot || other.Space != o.Space {
		return unknown
	}
	stat, err := proc.Host.Stat(other.Pid)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// With hidepid=2 (proc(5)) /proc does not show other users' processes.
		// kill(2) sees them.
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
