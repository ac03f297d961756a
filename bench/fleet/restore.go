package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/bench/rig"
)

// restoreStore restores etcd from a backup as docs/fleet.md says, without raising its
// revision. The backup is of a moment before a drain of the machine, so that it has
// records of sessions that other nodes have.
func (x *experiment) restoreStore(ctx context.Context, m *node) error {
	x.restored = true
	backup, err := x.backUp()
	defer os.RemoveAll(backup)
	if err != nil {
		return fmt.Errorf("back etcd up: %w", err)
	}
	if _, err := m.drain(ctx); err != nil {
		return err
	}
	if err := m.api.Uncordon(ctx, ""); err != nil {
		return err
	}
	if _, err := x.observer.store.Find(ctx); err != nil { // it notices a restore by what it saw last
		return err
	}
	x.etcd.Stop()
	sleep(ctx, timing(x.o.TTL).TTL+longer)
	for _, member := range x.etcd.Members {
		if err := errors.Join(os.RemoveAll(member.Dir), os.CopyFS(member.Dir, os.DirFS(backup+"/"+member.Label()))); err != nil {
			return err
		}
	}
	if err := x.etcd.Start(ctx); err != nil {
		return err
	}
	if err := x.observer.resume(ctx); err != nil {
		return err
	}
	return x.awaitAll(ctx)
}

// backUp copies the data of all members while they are stopped for a moment: what is on
// their disks if all lose their power at once.
func (x *experiment) backUp() (dir string, err error) {
	if dir, err = os.MkdirTemp(x.scratch, "backup-"); err != nil {
		return "", err
	}
	for _, m := range x.etcd.Members {
		m.Signal(unix.SIGSTOP)
		defer m.Signal(unix.SIGCONT)
	}
	for _, m := range x.etcd.Members {
		err = errors.Join(err, os.CopyFS(dir+"/"+m.Label(), os.DirFS(m.Dir)))
	}
	return dir, err
}

// resume returns when the observer's watch has all records of a restored etcd.
func (o *observer) resume(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	for {
		_, err := o.store.Find(ctx)
		if err == nil && o.store.Seen().Restored {
			err = o.store.Resume(ctx)
		}
		if err == nil {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) { // it does not answer yet, or the watch has not listed yet
			return fmt.Errorf("watching records after a restore of etcd: %w", err)
		}
	}
}
