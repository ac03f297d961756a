// Package owner identifies the process that made an object which outlives it, such as a
// container, so that a later process finds out whether the object is a leftover.
package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"holdfast/internal/platform/linux/proc"
)

// Owner identifies a process. A pid is unique only together with the start time, the pid
// namespace and the boot.
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

// String returns the owner as one line, for a label; Parse reads it.
func (o Owner) String() string {
	return fmt.Sprintf("%d %d %s %s", o.Pid, o.Start, o.Space, o.Boot)
}

// Parse reads what String returned. Any other string is an error.
func Parse(s string) (o Owner, err error) {
	_, err = fmt.Sscanf(s, "%d %d %s %s", &o.Pid, &o.Start, &o.Space, &o.Boot)
	// kill(2) treats pids that are not positive specially.
	if err != nil || o.Pid <= 0 || o.String() != s {
		return Owner{}, fmt.Errorf("%q is not an owner", s)
	}
	return o, nil
}

// Fate is what this process can determine about an owner.
type Fate int

// The fates.
const (
	Alive   Fate = iota
	Dead         // checked: the pid is free, or belongs to another process
	Unknown      // not visible: another pid namespace or boot, or hidden
)

// FateOf determines the fate of other as seen from o. Another pid namespace means
// another container that uses the same engine. Another boot means an earlier boot
// of this host, or another host.
func (o Owner) FateOf(other Owner) Fate {
	if other.Boot != o.Boot || other.Space != o.Space {
		return Unknown
	}
	stat, err := proc.Host.Stat(other.Pid)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// With hidepid=2 (proc(5)) /proc does not show other users' processes.
		// kill(2) sees them.
		if errors.Is(syscall.Kill(other.Pid, 0), syscall.ESRCH) {
			return Dead
		}
		return Unknown
	case err != nil:
		return Unknown
	case stat.Start != other.Start || stat.State == 'Z' || stat.State == 'X':
		return Dead
	}
	return Alive
}
