package etcd

import (
	"context"
	"fmt"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"holdfast"
)

const (
	// releaseBatch is the number of records that one transaction deletes. etcd allows
	// 128 operations by default (--max-txn-ops) and counts a nested transaction as
	// one operation plus those of its parent (checkTxnRequest in etcd's
	// api/v3rpc/key.go), so 127 is the most.
	releaseBatch = 127
	// releaseParallel is the number of transactions in flight.
	releaseParallel = 4
)

// Release deletes records, 127 in a round trip. Each record is a nested transaction
// of its own, so that a record that has changed does not affect the others.
func (s *Store) Release(ctx context.Context, owners ...holdfast.Owner) ([]holdfast.SessionKey, error) {
	s.written.drop(owners...)
	var (
		mu   sync.Mutex
		keys []holdfast.SessionKey
	)
	// No shared context: if one batch fails, the others still take effect.
	var g errgroup.Group
	g.SetLimit(releaseParallel)
	for batch := range slices.Chunk(owners, releaseBatch) {
		g.Go(func() error {
			deleted, err := s.release(ctx, batch)
			mu.Lock()
			defer mu.Unlock()
			keys = append(keys, deleted...)
			return err
		})
	}
	err := g.Wait()
	slices.Sort(keys)
	return keys, err
}

func (s *Store) release(ctx context.Context, owners []holdfast.Owner) ([]holdfast.SessionKey, error) {
	ops := make([]clientv3.Op, len(owners))
	for i, o := range owners {
		key := sessionPrefix + string(o.Key)
		ops[i] = clientv3.OpTxn([]clientv3.Cmp{s.unchanged(key, o.Revision)}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	}
	doing := fmt.Sprintf("release %d sessions", len(owners))
	r, err := s.do(ctx, doing, clientv3.OpTxn(nil, ops, nil))
	if err != nil {
		return nil, err
	}
	answers := r.Txn().Responses
	if len(answers) != len(owners) {
		return nil, fmt.Errorf("%s: etcd answered for %d", doing, len(answers))
	}
	var keys []holdfast.SessionKey
	for i, each := range answers {
		done := each.GetResponseTxn().GetResponses()
		if len(done) == 1 && done[0].GetResponseDeleteRange().GetDeleted() > 0 {
			keys = append(keys, owners[i].Key)
		}
	}
	return keys, nil
}
