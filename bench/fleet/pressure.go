package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
)

const (
	// spare is the memory that a machine's agent keeps under pressure, over what cannot be
	// reclaimed: enough for one garbage collection.
	spare = 4 << 20
	// squeezeEvery is the interval at which the limit follows the agent's memory, and
	// refill the one at which a disk is filled again.
	squeezeEvery = 20 * time.Millisecond
	refill       = 100 * time.Millisecond
)

// newMemoryGroup makes the memory control group of the machine's agent, below that of the
// lab's containers. The lab removes it.
func (x *experiment) newMemoryGroup(m *node) error {
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		return err
	}
	mount, ok := mounts.Memory()
	if !ok {
		return errors.New("no control groups for memory are mounted")
	}
	parent := x.lab.CgroupParent()
	m.memory = mount.Group(path.Join(parent, "agent-"+string(m.id)))
	if err := os.MkdirAll(m.memory.Dir(), 0o755); err != nil {
		return err
	}
	if !m.memory.V2 {
		return nil
	}
	up := mount.Group("/")
	for _, name := range strings.Split(strings.Trim(parent, "/"), "/") { // cgroups(7): enabled from the top down
		if err := kfile.Write(up.Dir()+"/cgroup.subtree_control", "+memory"); err != nil {
			return fmt.Errorf("enable control groups for memory: %w", err)
		}
		up.Path = path.Join(up.Path, name)
	}
	return kfile.Write(up.Dir()+"/cgroup.subtree_control", "+memory")
}

// limitFile is the file with the limit of the group, and unlimited what lifts it.
func limitFile(g cgroup.Group) (file, unlimited string) {
	if g.V2 {
		return g.Dir() + "/memory.max", "max"
	}
	return g.Dir() + "/memory.limit_in_bytes", "-1"
}

// squeeze leaves the machine's agent and its helpers, for longer than the lease, little
// more memory than what the kernel cannot reclaim. Pages of the program that are not locked
// in memory have to be read from the disk again and again.
func (x *experiment) squeeze(ctx context.Context, m *node) (err error) {
	file, unlimited := limitFile(m.memory)
	defer func() { err = errors.Join(err, kfile.Write(file, unlimited), m.survive(ctx)) }()
	for begin := now(); now()-begin < timing(x.o.TTL).TTL+longer; sleep(ctx, squeezeEvery) {
		stat, err := m.memory.MemoryStat()
		if err != nil {
			return err
		}
		usage, err := m.memory.MemoryUsage()
		if err != nil {
			return err
		}
		limit := usage - stat["inactive_file"] - stat["active_file"] + spare
		// EBUSY: the kernel could not reclaim as much.
		if err := kfile.Write(file, strconv.FormatInt(limit, 10)); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// survive waits until the machine's agent serves. If the kernel has killed it for its
// memory, it is started again, as its service manager does.
func (m *node) survive(ctx context.Context) error {
	select {
	case <-m.agent.Ended:
		m.live.Store(false)
		return m.boot(ctx)
	default:
		return m.awaitReady(ctx)
	}
}
