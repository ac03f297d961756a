package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/platform/store"
)

const (
	// historyReads is the number of revisions of a key that one transaction reads;
	// etcd allows 128 operations by default (see releaseBatch).
	historyReads = 100
	// longestGap is the number of revisions without a record after which the rest of
	// the history is watched instead of read one by one.
	longestGap = 2 * historyReads
)

// Follows reads the key's history between both claims. It finds the end of the first
// life by bisection, and searches for other lives from there on. A watch of the past
// would give the same answer, but etcd serves those only every 100 ms
// (watchResyncPeriod in its mvcc/watchable_store.go), and a client's request waits
// for the answer.
func (s *Store) Follows(ctx context.Context, key holdfast.SessionKey, before, next holdfast.Epoch) (bool, error) {
	base := holdfast.Epoch(s.base())
	if before <= base || next <= before {
		return false, nil // before the restore
	}
	before, next = before-base, next-base
	alive, gone := int64(before), int64(next) // at live the key has the first life, at gone it does not
	lives, err := s.livesAt(ctx, key, []int64{alive, gone})
	if err != nil || lives[0] != before || lives[1] != next {
		return false, err
	}
	for gone-alive > 1 {
		at := between(alive, gone)
		if lives, err = s.livesAt(ctx, key, at); err != nil {
			return false, err
		}
		for i, life := range lives {
			switch life {
			case before:
				alive = at[i]
			case 0:
				gone = min(gone, at[i])
			default:
				return false, nil
			}
		}
	}
	if int64(next)-gone > longestGap {
		return s.watchedFollows(ctx, key, before, next)
	}
	for ; gone < int64(next); gone += historyReads {
		if lives, err = s.livesAt(ctx, key, between(gone-1, min(gone+historyReads, int64(next)))); err != nil {
			return false, err
		}
		if slices.ContainsFunc(lives, func(life holdfast.Epoch) bool { return life != 0 }) {
			return false, nil
		}
	}
	return true, nil
}

// between returns up to historyReads revisions between two, evenly spread and in
// order; all of them if there are no more.
func between(from, to int64) (at []int64) {
	n := min(to-from-1, historyReads)
	for i := range n {
		at = append(at, from+(to-from)*(i+1)/(n+1))
	}
	return at
}

// livesAt returns the epoch of the key's record at each of the revisions, 0 if it had
// no record. store.ErrForgotten.
func (s *Store) livesAt(ctx context.Context, key holdfast.SessionKey, at []int64) ([]holdfast.Epoch, error) {
	doing := fmt.Sprintf("read the history of %s", key)
	var reads []clientv3.Op
	for _, revision := range at {
		reads = append(reads, clientv3.OpGet(sessionPrefix+string(key), clientv3.WithRev(revision), clientv3.WithKeysOnly()))
	}
	r, err := s.do(ctx, doing, clientv3.OpTxn(nil, reads, nil))
	if errors.Is(err, rpctypes.ErrCompacted) {
		err = fmt.Errorf("%w: %w", store.ErrForgotten, err)
	}
	if err != nil {
		return nil, err
	}
	lives := make([]holdfast.Epoch, len(at))
	for i, one := range r.Txn().Responses {
		if kvs := one.GetResponseRange().Kvs; len(kvs) > 0 {
			lives[i] = holdfast.Epoch(kvs[0].CreateRevision)
		}
	}
	return lives, nil
}

// watchedFollows is Follows by a watch that begins in the past.
func (s *Store) watchedFollows(ctx context.Context, key holdfast.SessionKey, before, next holdfast.Epoch) (bool, error) {
	doing := fmt.Sprintf("read the history of %s", key)
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	changes := s.client.Watch(clientv3.WithRequireLeader(ctx), sessionPrefix+string(key), clientv3.WithRev(int64(before)))
	seen := false
	for r := range changes {
		if err := r.Err(); errors.Is(err, rpctypes.ErrCompacted) {
			return false, fmt.Errorf("%s: %w: %w", doing, store.ErrForgotten, err)
		} else if err != nil {
			return false, fmt.Errorf("%s: %w: %w", doing, holdfast.ErrStore, err)
		}
		for _, e := range r.Events {
			switch of := holdfast.Epoch(e.Kv.CreateRevision); {
			case e.Type == mvccpb.DELETE:
			case of == before:
				seen = true
			default:
				return seen && of == next, nil
			}
		}
	}
	return false, fmt.Errorf("%s: %w: %w", doing, holdfast.ErrStore, context.Cause(ctx))
}
