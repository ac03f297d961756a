package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"holdfast"
	"holdfast/internal/platform/linux/netns"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
)

// Check reports for each backend whether it would work for o; Why is "" if it
// would. Error: ErrNothingListens.
func Check(ctx context.Context, o Options) ([]Refusal, error) {
	if err := NeedsRoot(); err != nil {
		return nil, err
	}
	k, err := StartKeeper(KeeperOptions{Argv: o.Keeper, Netns: o.Netns, Log: o.Log})
	if err != nil {
		return nil, err
	}
	defer k.Close()
	rs, err := k.Probe(ctx, o.Spec)
	if errors.Is(err, ErrNothingListens) {
		err = explain(ErrNothingListens, o.Spec)
	}
	return rs, err
}

// Family returns a process and its descendants, itself first.
func Family(pid int) ([]int, error) {
	if _, err := proc.Host.Stat(pid); errors.Is(err, fs.ErrNotExist) {
		return nil, holdfast.WithHint(fmt.Errorf("there is no process %d", pid), "`ss -ltnp` shows which processes listen")
	} else if err != nil {
		return nil, err
	}
	all, err := proc.Host.Pids()
	if err != nil {
		return nil, err
	}
	family := []int{pid}
	for _, p := range all {
		if up, err := proc.Host.Ancestors(p); err == nil && slices.Contains(up, pid) {
			family = append(family, p)
		}
	}
	return family, nil
}

// UnitPIDs returns the processes of a systemd service, found by their cgroup.
func UnitPIDs(unit string) ([]int, error) {
	if !strings.Contains(unit, ".") {
		unit += ".service"
	}
	all, err := proc.Host.Pids()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range all {
		if b, err := proc.Host.Cgroup(p); err == nil && inUnit(string(b), unit) {
			pids = append(pids, p)
		}
	}
	if len(pids) == 0 {
		return nil, holdfast.WithHint(fmt.Errorf("no process belongs to the unit %s", unit), "`systemctl status "+unit+"` shows whether it runs")
	}
	return pids, nil
}

// inUnit reports whether a line of /proc/pid/cgroup (cgroups(7)) names the unit
// or a cgroup below it.
//
//	1:name=systemd:/system.slice/nginx.service
//	0::/system.slice/nginx.service/worker
func inUnit(cgroups, unit string) bool {
	for line := range strings.Lines(cgroups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (f[1] == "" || f[1] == "name=systemd") && slices.Contains(strings.Split(f[2], "/"), unit) {
			return true
		}
	}
	return false
}

// ListenedBy returns the addresses on which the processes listen, in the
// network namespace at path. Error: ErrNothingListens.
func ListenedBy(path string, pids []int) ([]Address, error) {
	var as []Address
	err := netns.Do(path, func() error {
		d, err := sockdiag.Open()
		if err != nil {
			return err
		}
		defer d.Close()
		ls, err := d.Listeners(0)
		if err != nil {
			return err
		}
		for _, l := range ls {
			if len(pidfd.SocketsOf(pids, l.Inode)) == 0 {
				continue
			}
			a := Address{Addr: l.Addr.Addr().Unmap(), Port: l.Addr.Port()}
			if a.Addr.IsUnspecified() {
				a.Addr = Address{}.Addr
			}
			if !slices.Contains(as, a) {
				as = append(as, a)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the listeners of process %d: %w", pids[0], err)
	}
	if len(as) == 0 {
		return nil, holdfast.WithHint(fmt.Errorf("process %d: %w on any TCP port", pids[0], ErrNothingListens), "name the port with --port")
	}
	return as, nil
}
