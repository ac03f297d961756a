package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/platform/store"
)

// baseKey has the number that all nodes add to etcd's revisions. It is raised after
// etcd was restored from a backup, which sets its revision back. A record has the base
// of its claim, so that its epoch stays.
const baseKey = prefix + "epoch-base"

// do makes one operation or transaction, and notices by the answer that etcd was
// restored. The answers are linearizable, so their revisions never go back otherwise.
func (s *Store) do(ctx context.Context, doing string, op clientv3.Op) (clientv3.OpResponse, error) {
	before, base := s.past.Mark(), s.base()
	r, err := call(ctx, s, doing, func(ctx context.Context) (clientv3.OpResponse, error) { return s.client.Do(ctx, op) })
	if err != nil {
		return r, err
	}
	switch {
	case r.Txn() != nil:
		s.past.Answered(before, r.Txn().Header.ClusterId, holdfast.Revision(r.Txn().Header.Revision), base)
	case r.Get() != nil:
		s.past.Answered(before, r.Get().Header.ClusterId, holdfast.Revision(r.Get().Header.Revision), base)
	case r.Put() != nil:
		s.past.Answered(before, r.Put().Header.ClusterId, holdfast.Revision(r.Put().Header.Revision), base)
	}
	return r, nil
}

// base is the number to add to etcd's revisions.
func (s *Store) base() holdfast.Revision { return holdfast.Revision(s.added.Load()) }

// revision returns a revision of etcd's as the interface counts.
func (s *Store) revision(raw int64) holdfast.Revision { return s.base() + holdfast.Revision(raw) }

// raw returns a revision as etcd counts.
func (s *Store) raw(at holdfast.Revision) int64 { return int64(at - s.base()) }

// unchanged is the condition that a key has the revision.
func (s *Store) unchanged(key string, at holdfast.Revision) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", s.raw(at))
}

// sameBase is the condition that no node has raised the base.
func (s *Store) sameBase() clientv3.Cmp {
	if base := s.base(); base != 0 {
		return clientv3.Compare(clientv3.Value(baseKey), "=", strconv.FormatInt(int64(base), 10))
	}
	return clientv3.Compare(clientv3.CreateRevision(baseKey), "=", 0)
}

// readBase reads the base that is in etcd, and etcd's revision.
func (s *Store) readBase(ctx context.Context) (base, at holdfast.Revision, same clientv3.Cmp, err error) {
	const doing = "read the base of epochs"
	r, err := s.do(ctx, doing, clientv3.OpGet(baseKey))
	if err != nil {
		return 0, 0, same, err
	}
	at, same = holdfast.Revision(r.Get().Header.Revision), clientv3.Compare(clientv3.ModRevision(baseKey), "=", 0)
	if kvs := r.Get().Kvs; len(kvs) == 1 {
		n, err := strconv.ParseInt(string(kvs[0].Value), 10, 64)
		if err != nil {
			return 0, 0, same, fmt.Errorf("%s: %w", doing, err)
		}
		base, same = holdfast.Revision(n), clientv3.Compare(clientv3.ModRevision(baseKey), "=", kvs[0].ModRevision)
	}
	return base, at, same, nil
}

// Ping reads the base of epochs. It shows that etcd answers and accepts the
// credentials. A base that another node has raised means that etcd was restored.
func (s *Store) Ping(ctx context.Context) error {
	base, _, _, err := s.readBase(ctx)
	if err == nil && base != s.base() {
		s.past.Notice()
	}
	return err
}

// Seen returns what this Store has seen.
func (s *Store) Seen() store.Seen { return s.past.Seen() }

// Remember adds what an earlier process has seen.
func (s *Store) Remember(seen store.Seen) { s.past.Remember(seen) }

// errRaced means that another node has raised the base at the same time.
var errRaced = fmt.Errorf("another node raises the epochs: %w", holdfast.ErrStore)

// RaiseEpochs raises the base in etcd if that is necessary.
func (s *Store) RaiseEpochs(ctx context.Context) error {
	_, err := s.raise(ctx)
	return err
}

func (s *Store) raise(ctx context.Context) (holdfast.Revision, error) {
	const doing = "raise the epochs"
	base, at, same, err := s.readBase(ctx)
	if err != nil {
		return 0, err
	}
	to := s.Seen().Base(base, at)
	if to == base {
		return base, nil
	}
	put := clientv3.OpPut(baseKey, strconv.FormatInt(int64(to), 10))
	r, err := s.do(ctx, doing, clientv3.OpTxn([]clientv3.Cmp{same}, []clientv3.Op{put}, nil))
	if err == nil && !r.Txn().Succeeded {
		err = fmt.Errorf("%s: %w", doing, errRaced)
	}
	return to, err
}

// Resume raises the epochs and accepts claims again.
func (s *Store) Resume(ctx context.Context) error {
	base, err := s.raise(ctx)
	if err != nil {
		return err
	}
	return s.past.Resume(func() {
		s.added.Store(int64(base))
		s.lists.Forget()
	})
}

// open reads the base for a new Store.
func (s *Store) open(ctx context.Context) error {
	base, _, _, err := s.readBase(ctx)
	s.added.Store(int64(base))
	return err
}

// refuse is the answer to a claim at another base than the present one.
func (s *Store) refuse(doing string) (holdfast.Owner, error) {
	s.past.Notice()
	return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, store.ErrRestored)
}

var errMismatch = errors.New("etcd's response does not match the request")
