package fleet

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/bench/rig"
)

// jump is how far the clocks of a machine are set wrong.
const jump = time.Hour

// setClocks sets the clocks of the machine's processes forward, then back, each for longer
// than the lease, and then right.
func (x *experiment) setClocks(ctx context.Context, m *node) error {
	pids := []int{m.agent.PID()}
	for _, role := range []string{deadmanRole, guardianRole} {
		more, err := m.helpers(role)
		if err != nil {
			return err
		}
		pids = append(pids, more...)
	}
	var clocks []*rig.Clock
	for _, pid := range pids {
		c, err := rig.OpenClock(pid)
		if err != nil {
			return err
		}
		clocks = append(clocks, c)
	}
	each := func(set func(*rig.Clock) error) (err error) {
		for _, c := range clocks {
			// The agent may have replaced a helper.
			if e := set(c); !errors.Is(e, unix.ESRCH) && !errors.Is(e, os.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
		return err
	}
	for _, by := range []time.Duration{jump, -jump} {
		if err := each(func(c *rig.Clock) error { return c.Shift(by) }); err != nil {
			return errors.Join(err, each((*rig.Clock).Restore))
		}
		sleep(ctx, timing(x.o.TTL).TTL+longer)
	}
	return errors.Join(each((*rig.Clock).Restore), m.awaitReady(ctx))
}
