package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/linux/boottime"
	"holdfast/internal/store"
)

// LeaseConfig is what a Lease needs to know.
type LeaseConfig struct {
	File    string        // where the lease's id is kept over a restart of the agent
	TTL     time.Duration // whole seconds
	Renew   time.Duration // between renewals, under TTL
	Publish time.Duration // between writes of the node's record

	// Fence is how long after the sending of the last good renewal what the
	// lease holds is ended, within KillBudget, so that it is dead before the
	// lease can expire and others claim it (holdfast.Timing). 0: never, for a
	// store that nobody else can claim in.
	Fence      time.Duration
	KillBudget time.Duration
}

// Lease is this node's lease on everything it owns. A restarted agent goes on
// with the lease of the one before it, so that the records stay.
type Lease struct {
	cfg   LeaseConfig
	store store.Store
	log   *slog.Logger
	id    atomic.Int64

	good   atomic.Int64 // boottime.Instant of the sending of the last good renewal
	fenced atomic.Bool
}

// NewLease returns a lease that is not held yet.
func NewLease(cfg LeaseConfig, s store.Store, log *slog.Logger) *Lease {
	return &Lease{cfg: cfg, store: s, log: log}
}

// ID is the lease's id, 0 before Hold and while nothing may be claimed under it
// because it could not be renewed. Any goroutine may call it.
func (l *Lease) ID() store.LeaseID {
	if l.fenced.Load() {
		return 0
	}
	return l.held()
}

// held is the lease's id, fenced or not.
func (l *Lease) held() store.LeaseID { return store.LeaseID(l.id.Load()) }

// renewed takes note of a renewal that was sent at a moment, and succeeded.
func (l *Lease) renewed(sent boottime.Instant) {
	l.good.Store(int64(sent))
	l.fenced.Store(false)
}

// Hold takes the kept lease up again, or gets a new one and keeps its id.
func (l *Lease) Hold(ctx context.Context) error {
	id, err := l.kept()
	if err != nil {
		return err
	}
	if id != 0 {
		sent := boottime.Now()
		err := l.store.KeepAlive(ctx, id)
		if err == nil {
			l.id.Store(int64(id))
			l.renewed(sent)
			return nil
		}
		if !errors.Is(err, store.ErrLeaseGone) {
			return fmt.Errorf("renewing the node's lease: %w", err)
		}
		l.log.Warn("the kept lease is gone; what it held was given up", "lease", id)
	}
	return l.grant(ctx)
}

func (l *Lease) grant(ctx context.Context) error {
	sent := boottime.Now()
	id, _, err := l.store.Grant(ctx, l.cfg.TTL)
	if err != nil {
		return fmt.Errorf("getting a lease: %w", err)
	}
	if err := l.keep(id); err != nil {
		return err
	}
	l.id.Store(int64(id))
	l.renewed(sent)
	return nil
}

// kept reads the id on disk, 0 where there is none or it is no number.
func (l *Lease) kept() (store.LeaseID, error) {
	text, err := os.ReadFile(l.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the kept lease: %w", err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		l.log.Warn("the kept lease cannot be read; getting a new one", "file", l.cfg.File)
		return 0, nil
	}
	return store.LeaseID(n), nil
}

// keep writes the id so that a power cut leaves the old file or the new one.
func (l *Lease) keep(id store.LeaseID) error {
	f, err := os.CreateTemp(filepath.Dir(l.cfg.File), ".lease-")
	if err != nil {
		return fmt.Errorf("keeping the lease: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = fmt.Fprintln(f, int64(id))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), l.cfg.File)
	}
	if err != nil {
		return fmt.Errorf("keeping the lease: %w", err)
	}
	return nil
}

// Run renews the lease and publishes the node's record until ctx is done. lost
// is called when the lease has expired: every record under it is gone, so what
// runs here must die before anything else is claimed; then a new lease is
// taken. It is also called when the lease could not be renewed for Fence, from
// another goroutine; nothing is claimed then until it could be. A store that is
// away is logged when it goes and when it is back.
func (l *Lease) Run(ctx context.Context, self func() holdfast.Node, lost func(context.Context)) error {
	if l.cfg.Fence > 0 {
		var guard sync.WaitGroup
		guard.Go(func() { l.guard(ctx, lost) })
		defer guard.Wait()
	}
	renew := time.NewTicker(l.cfg.Renew)
	defer renew.Stop()
	publish := time.NewTicker(l.cfg.Publish)
	defer publish.Stop()
	away := false
	tell := func(err error) {
		switch {
		case ctx.Err() != nil:
		case err != nil && !away:
			l.log.Warn("the store does not take this node's writes (will be tried again)", "err", err)
		case err == nil && away:
			l.log.Info("the store takes this node's writes again")
		}
		away = err != nil
	}
	tell(l.publish(ctx, self()))
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-publish.C:
			tell(l.publish(ctx, self()))
		case <-renew.C:
			tell(l.renew(ctx, lost))
		}
	}
}

func (l *Lease) renew(ctx context.Context, lost func(context.Context)) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.TTL)
	defer cancel()
	sent := boottime.Now()
	err := l.store.KeepAlive(ctx, l.held())
	if err == nil {
		l.renewed(sent)
		return nil
	}
	if !errors.Is(err, store.ErrLeaseGone) {
		return fmt.Errorf("renewing the node's lease: %w", err)
	}
	l.log.Error("the node's lease has expired; ending what it held")
	lost(ctx)
	return l.grant(ctx)
}

// guard ends what the lease holds when it has not been renewed for Fence. It
// does not wait for the store: that is what may be hanging.
func (l *Lease) guard(ctx context.Context, lost func(context.Context)) {
	tick := time.NewTicker(min(l.cfg.Renew, l.cfg.Fence) / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		overdue := boottime.Instant(l.good.Load()).Add(l.cfg.Fence).Until() <= 0
		if !overdue || l.fenced.Swap(true) {
			continue
		}
		l.log.Error("the node's lease could not be renewed; ending what it holds before others may claim it", "fence", l.cfg.Fence)
		killing, cancel := context.WithTimeout(ctx, l.cfg.KillBudget)
		lost(killing)
		cancel()
	}
}

func (l *Lease) publish(ctx context.Context, n holdfast.Node) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Publish)
	defer cancel()
	if err := l.store.PutNode(ctx, n, l.held()); err != nil {
		return fmt.Errorf("publishing the node's record: %w", err)
	}
	return nil
}

// Drop ends the lease after everything under it was given up, so that the node
// is gone from the store at once.
func (l *Lease) Drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := l.store.Revoke(ctx, l.held()); err != nil {
		return fmt.Errorf("ending the node's lease: %w", err)
	}
	if err := os.Remove(l.cfg.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("ending the node's lease: %w", err)
	}
	return nil
}
