package move

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/bench"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// ForkMemory is the memory of a fork's sessions.
type ForkMemory struct {
	Parent   SessionsMemory `json:"parent"` // before its first fork, alone on the host
	Children SessionsMemory `json:"children"`
}

// SessionsMemory is the memory of some sessions. Charged has the bytes that are charged to
// their control groups.
type SessionsMemory struct {
	Sessions int          `json:"sessions"`
	Sandbox  bench.Memory `json:"sandbox"` // the address spaces of the control groups
	Shim     bench.Memory `json:"shim"`    // the engine's shims
	Charged  int64        `json:"charged"`
}

// String describes the mean of a session.
func (m SessionsMemory) String() string {
	mib := func(n float64) float64 { return n / (1 << 20) / float64(max(m.Sessions, 1)) }
	return fmt.Sprintf("%.1f MiB charged to its control group, PSS %.1f MiB, RSS %.1f MiB; its shim PSS %.1f MiB",
		mib(float64(m.Charged)), mib(float64(m.Sandbox.PSS)), mib(float64(m.Sandbox.RSS)), mib(float64(m.Shim.PSS)))
}

// memoryOf measures sessions that are ready.
func (x *experiment) memoryOf(ctx context.Context, keys []holdfast.SessionKey) (m SessionsMemory, err error) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return m, err
	}
	for _, key := range keys {
		_, owner, err := x.where(ctx, key)
		if err != nil {
			return m, err
		}
		c, err := x.engine.Inspect(ctx, owner.ContainerID)
		if err != nil {
			return m, err
		}
		if err := m.add(groups, c.Pid); err != nil {
			return m, fmt.Errorf("measure session %s: %w", key, err)
		}
	}
	return m, nil
}

// add adds the session whose first process is pid, a child of the shim.
func (m *SessionsMemory) add(groups cgroup.Mounts, pid int) error {
	group, err := bench.MemoryGroup(groups, pid)
	if err != nil {
		return err
	}
	pids, err := group.Procs()
	if err != nil {
		return err
	}
	for _, p := range addressSpaces(pids) {
		if err := m.Sandbox.Add(p); err != nil {
			return err
		}
	}
	stat, err := proc.Host.Stat(pid)
	if err != nil {
		return err
	}
	if err := m.Shim.Add(stat.PPid); err != nil {
		return err
	}
	charged, err := group.MemoryUsage()
	m.Sessions, m.Charged = m.Sessions+1, m.Charged+charged
	return err
}

// addressSpaces returns one process of each address space. Several processes of gVisor's
// systrap share one, and each would have its whole memory.
func addressSpaces(pids []int) (some []int) {
	for _, pid := range pids {
		if !slices.ContainsFunc(some, func(other int) bool { return sharesMemory(pid, other) }) {
			some = append(some, pid)
		}
	}
	return some
}

// sharesMemory asks the kernel with kcmp(2). It is false if the kernel cannot tell, or if a
// process has ended.
func sharesMemory(a, b int) bool {
	const vm = 1 // KCMP_VM of linux/kcmp.h
	order, _, err := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), vm, 0, 0, 0)
	return err == 0 && order == 0
}
