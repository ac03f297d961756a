package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// slowWrite is how long a write of a record may take before the log names the store as
// the cause of a client's wait.
const slowWrite = time.Second

// noteSlow logs a write of the record's state that took long, with all its retries. The
// phases of the boot do not include the last write, which contains them.
func (b *attempt) noteSlow(s holdfast.State, begun time.Time) {
	if took := time.Since(begun); took >= slowWrite {
		b.m.log.Warn("the store took long to write a session's record", "session", b.e.key, "state", s, "took", took.Round(time.Millisecond))
	}
}

func (b *attempt) claim(ctx context.Context) error {
	defer b.noteSlow(holdfast.Claimed, time.Now())
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	err := retry(ctx, holdfast.ErrStore, func() error {
		lease := b.m.deps.Lease()
		if lease == 0 && b.m.cfg.Others {
			return errFenced
		}
		if lease == 0 {
			return fmt.Errorf("this node cannot renew its lease: %w", holdfast.ErrStore)
		}
		o, err := b.m.deps.Store.Claim(ctx, holdfast.Owner{
			Key: b.e.key, Node: b.m.cfg.Node, State: holdfast.Claimed,
			Template: b.e.template.Name, ClaimedAt: time.Now().UTC(),
		}, lease)
		if errors.Is(err, store.ErrTaken) && b.isLostClaim(o) {
			err = nil
		}
		b.unsure = err != nil && !errors.Is(err, store.ErrTaken) && !errors.Is(err, store.ErrLeaseGone)
		if errors.Is(err, store.ErrTaken) && o.Node != b.m.cfg.Node {
			return &holdfast.ElsewhereError{Owner: o}
		}
		if errors.Is(err, store.ErrTaken) {
			// The record is this node's, from an earlier time, and no session of this
			// Manager uses it: this entry is the key's only one.
			if err := b.m.releaseOrphan(ctx, o); err != nil {
				return err
			}
			return fmt.Errorf("found an old record of this node: %w", holdfast.ErrStore) // retry
		}
		if err != nil {
			return err
		}
		b.owner = o
		b.m.mu.Lock()
		b.e.claimed = o.Epoch
		b.m.mu.Unlock()
		if !b.e.keeps {
			b.m.emit(holdfast.EventBoot, o, 0)
		}
		return nil
	})
	if errors.Is(err, errFenced) {
		err = fmt.Errorf("%w: %w", err, holdfast.ErrStore)
	}
	return err
}

// errFenced ends a claim at once if other nodes can be asked.
var errFenced = errors.New("this node cannot renew its lease")

// isLostClaim reports whether a record is a claim of this node that was written
// although its answer was lost. No container runs under it, because a container is
// created only with the epoch of an answered claim. A claim of before a restore of the
// store, which raises revisions, does not count: its epoch is too low.
func (b *attempt) isLostClaim(o holdfast.Owner) bool {
	return o.Node == b.m.cfg.Node && o.State == holdfast.Claimed && o.Revision == holdfast.Revision(o.Epoch)
}

// advance writes the record's next state. Only boot and its followers write it.
func (b *attempt) advance(ctx context.Context, s holdfast.State) error {
	defer b.noteSlow(s, time.Now())
	next := b.owner
	next.State = s
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return retry(ctx, holdfast.ErrStore, func() error {
		got, err := b.m.deps.Store.Advance(ctx, next)
		if errors.Is(err, store.ErrStale) && got.Epoch == next.Epoch && got.Node == next.Node && got.State == s {
			err = nil // an earlier attempt was written and its answer lost
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", s, err)
		}
		b.owner = got
		return nil
	})
}
