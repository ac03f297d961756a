package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/bench/rig"
	"holdfast/internal/platform/linux/proc"
)

// The roles of an agent's helper processes, as their arguments name them.
const (
	deadmanRole  = "deadman"
	guardianRole = "guardian"
)

// harm hits the machine's deadman or guardian, and returns when the agent has one again.
// A node whose guardian was hit drains at once.
func (x *experiment) harm(ctx context.Context, act Act, m *node) error {
	role := deadmanRole
	if act.onGuardian() {
		role = guardianRole
	}
	hit, err := m.helpers(role)
	if err != nil || len(hit) == 0 {
		return errors.Join(err, fmt.Errorf("%s has %d processes with the role %s", m.id, len(hit), role))
	}
	signal := unix.SIGKILL
	if act == DeadmanStopped || act == GuardianStopped {
		signal = unix.SIGSTOP
	}
	begin := now()
	signalEach(hit, signal)
	if act.onGuardian() {
		if _, err := m.drain(ctx); err != nil {
			return err
		}
		if err := m.api.Uncordon(ctx, ""); err != nil {
			return err
		}
	}
	if signal == unix.SIGSTOP {
		sleep(ctx, begin+timing(x.o.TTL).TTL+longer-now())
		signalEach(hit, unix.SIGCONT) // the agent may have killed it
		hit = nil
	}
	return m.awaitHelper(ctx, role, hit)
}

func signalEach(pids []int, signal unix.Signal) {
	for _, pid := range pids {
		_ = unix.Kill(pid, signal) // ESRCH: it has ended
	}
}

// helpers returns the machine's processes with a role that run and are not stopped.
func (m *node) helpers(role string) ([]int, error) {
	run := filepath.Join(m.dir, "run")
	all, err := mentioning(run)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, pid := range all {
		args, err := proc.Host.Cmdline(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if n := len(args); err != nil || n < 2 || args[n-2] != role || args[n-1] != run {
			continue
		}
		if s, err := proc.Host.Stat(pid); err == nil && s.State != 'T' {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// awaitHelper returns when the agent has a helper with the role that is not one of those.
func (m *node) awaitHelper(ctx context.Context, role string, not []int) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	for {
		pids, err := m.helpers(role)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(pids, func(pid int) bool { return !slices.Contains(not, pid) }) {
			return m.awaitReady(ctx)
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%s has no %s again: %w\n%s", m.agent.Name, role, ctx.Err(), m.agent.Tail())
		}
	}
}
