package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/store"
)

// Follows reads the key's history between both claims.
func (s *Store) Follows(ctx context.Context, key holdfast.SessionKey, before, next holdfast.Epoch) (bool, error) {
	doing := fmt.Sprintf("read the history of %s", key)
	if before <= 0 || next <= before {
		return false, nil
	}
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
