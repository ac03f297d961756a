package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/bench/rig"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

const (
	// trialTime is how long the old agent stands by after an upgrade.
	trialTime = time.Second
	// upgradeTries is the number of upgrades that may fail in a row. One that fails leaves
	// the old agent in place: on busy CPUs the new one may not renew the lease in time.
	upgradeTries = 5
)

// upgrade replaces the machine's agent by another process while it runs, as
// `holdfast agent --upgrade` does. It begins when all sessions are served, because an
// upgrade waits only for a while for boots, and then refuses the requests that wait for them.
func (x *experiment) upgrade(ctx context.Context, m *node) error {
	if err := x.awaitAll(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeTries*rig.Patience)
	defer cancel()
	var failures []error
	for range upgradeTries {
		if err := x.install(m); err != nil {
			return err
		}
		err := m.upgrade(ctx)
		var failed *failedUpgrade
		if !errors.As(err, &failed) {
			return err
		}
		x.say("%s: %v", m.id, err)
		failures = append(failures, err)
		if err := m.awaitReady(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d upgrades in a row failed: %w", upgradeTries, errors.Join(failures...))
}

// failedUpgrade means that the old agent serves again.
type failedUpgrade struct{ why string }

func (f *failedUpgrade) Error() string { return "the upgrade failed: " + f.why }

// upgrade lets the program on disk take the agent's place, and follows it.
func (m *node) upgrade(ctx context.Context) error {
	old := m.agent
	old.Asked.Store(true)
	u, err := m.api.UpgradeAgent(ctx, trialTime)
	for err == nil && u.State != api.UpgradeDone && u.State != api.UpgradeFailed && sleep(ctx, 20*time.Millisecond) {
		now, e := m.api.LastUpgrade(ctx)
		if errors.Is(e, client.ErrUnreachable) {
			continue // neither agent answers at the moment
		}
		if e == nil && now.ID != u.ID {
			e = errors.New("the agent that answers does not know the upgrade")
		}
		u, err = now, e
	}
	switch {
	case err != nil || ctx.Err() != nil:
		return fmt.Errorf("upgrade: %w\n%s", errors.Join(err, ctx.Err()), old.Tail())
	case u.State == api.UpgradeFailed:
		old.Asked.Store(false)
		return &failedUpgrade{u.Error}
	}
	if m.agent, err = old.Adopt(u.To.PID); err != nil {
		m.agent = old
		return err
	}
	return errors.Join(old.AwaitEnd(rig.Patience), m.awaitReady(ctx))
}

// install gives the machine its own file with the agent's program, in place of an earlier
// one. Its pages are not in memory.
func (x *experiment) install(m *node) error {
	if err := os.MkdirAll(filepath.Dir(m.program), 0o700); err != nil {
		return err
	}
	from, err := os.Open(x.o.Program)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(m.program+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Sync(), unix.Fadvise(int(to.Fd()), 0, 0, unix.FADV_DONTNEED), to.Close()); err != nil {
		return err
	}
	return os.Rename(m.program+".new", m.program)
}
