package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// Store is a store.Store in etcd, made by Dial.
type Store struct {
	client  *clientv3.Client
	log     *slog.Logger
	timeout time.Duration // of one call, if etcd is not busy
	where   string        // the hint for an etcd that does not answer
	lists   store.Lists
	past    store.Past
	added   atomic.Int64 // the base of revisions, see baseKey

	renewals renewals
	written  written
	patience patience
	calls    tasks.Group // in progress, each with a deadline; open until Close
}

var _ store.Store = (*Store)(nil)

// Grant makes a lease. etcd counts in whole seconds: ttl is rounded up.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	const doing = "grant a lease"
	seconds := max(int64((ttl+time.Second-1)/time.Second), 1)
	r, err := call(ctx, s, doing, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return s.client.Grant(ctx, seconds)
	})
	if err != nil {
		return 0, 0, err
	}
	s.written.reset() // what was written under the lease before is gone, or will be
	return store.LeaseID(r.ID), time.Duration(r.TTL) * time.Second, nil
}

// Revoke ends a lease.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	_, err := call(ctx, s, fmt.Sprintf("revoke lease %x", int64(id)), func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
		return s.client.Revoke(ctx, clientv3.LeaseID(id))
	})
	if errors.Is(err, store.ErrLeaseGone) {
		return nil
	}
	return err
}

// PutNode writes a node's record.
func (s *Store) PutNode(ctx context.Context, n holdfast.Node, id store.LeaseID) error {
	doing := fmt.Sprintf("put node %s", n.ID)
	value, err := encode(n)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	key := nodePrefix + string(n.ID)
	ours := clientv3.Compare(clientv3.LeaseValue(key), "=", clientv3.LeaseID(id))
	none := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	put := clientv3.OpPut(key, value, clientv3.WithLease(clientv3.LeaseID(id)))
	for _, condition := range []clientv3.Cmp{ours, none} { // none is for the first record only
		r, err := s.do(ctx, doing, clientv3.OpTxn([]clientv3.Cmp{condition}, []clientv3.Op{put}, nil))
		if err != nil || r.Txn().Succeeded {
			return err
		}
	}
	return fmt.Errorf("%s: %w", doing, store.ErrNodeTaken)
}

// Node returns the record of a node whose lease lives.
func (s *Store) Node(ctx context.Context, id holdfast.NodeID) (holdfast.Node, error) {
	return read(ctx, s, fmt.Sprintf("get node %s", id), nodePrefix+string(id), decodeNode)
}

// read reads the record of a key. holdfast.ErrNotFound.
func read[T any](ctx context.Context, s *Store, doing, key string, decode func(*mvccpb.KeyValue) (T, error)) (T, error) {
	var record T
	r, err := s.do(ctx, doing, clientv3.OpGet(key))
	if err != nil {
		return record, err
	}
	if len(r.Get().Kvs) == 0 {
		return record, fmt.Errorf("%s: %w", doing, holdfast.ErrNotFound)
	}
	record, err = decode(r.Get().Kvs[0])
	if err != nil {
		return record, fmt.Errorf("%s: %w", doing, err)
	}
	return record, nil
}

// Nodes lists the nodes.
func (s *Store) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	r, err := s.do(ctx, "list nodes", clientv3.OpGet(nodePrefix, clientv3.WithPrefix()))
	if err != nil {
		return nil, err
	}
	nodes := make([]holdfast.Node, 0, len(r.Get().Kvs))
	for _, kv := range r.Get().Kvs {
		n, err := decodeNode(kv)
		if err != nil {
			s.unreadable(err) // the other records are still listed
			continue
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// Claim creates a record.
func (s *Store) Claim(ctx context.Context, o holdfast.Owner, id store.LeaseID) (holdfast.Owner, error) {
	doing := fmt.Sprintf("claim %s", o.Key)
	if s.Seen().Restored {
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, store.ErrRestored)
	}
	base := s.base()
	value, err := encodeOwner(o, base)
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, err)
	}
	key := sessionPrefix + string(o.Key)
	free := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	put := clientv3.OpPut(key, value, clientv3.WithLease(clientv3.LeaseID(id)))
	left := clientv3.OpDelete(leftKey(o.Key), clientv3.WithPrevKV())
	answer, err := s.do(ctx, doing, clientv3.OpTxn([]clientv3.Cmp{free, s.sameBase()}, []clientv3.Op{put, left}, []clientv3.Op{clientv3.OpGet(key)}))
	if err != nil {
		return holdfast.Owner{}, err
	}
	if s.Seen().Restored { // the answer may be of another history
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, store.ErrRestored)
	}
	r := answer.Txn()
	if r.Succeeded {
		o.SuspendNote = leftIn(r)
		o.Revision = s.revision(r.Header.Revision)
		o.Epoch = holdfast.Epoch(o.Revision)
		s.written.put(record{o, base})
		return o, nil
	}
	present, err := s.refused(doing, r, store.ErrTaken)
	if present.Key == "" && errors.Is(err, store.ErrTaken) { // the key is free: the base is another
		return s.refuse(doing)
	}
	return present, err
}

// Advance replaces a record in one round trip, if this Store wrote the present one. Otherwise it reads
// that first.
func (s *Store) Advance(ctx context.Context, o holdfast.Owner) (holdfast.Owner, error) {
	doing := fmt.Sprintf("advance %s", o.Key)
	key := sessionPrefix + string(o.Key)
	now, err := s.present(ctx, doing, o)
	if err != nil {
		return now.Owner, err
	}
	o.Node, o.Epoch = now.Node, now.Epoch
	value, err := encodeOwner(o, now.Base)
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, err)
	}
	put := clientv3.OpPut(key, value, clientv3.WithIgnoreLease())
	answer, err := s.do(ctx, doing, clientv3.OpTxn([]clientv3.Cmp{s.unchanged(key, o.Revision)}, []clientv3.Op{put}, []clientv3.Op{clientv3.OpGet(key)}))
	if err != nil {
		return holdfast.Owner{}, err
	}
	r := answer.Txn()
	if r.Succeeded {
		o.Revision = s.revision(r.Header.Revision)
		s.written.put(record{o, now.Base})
		return o, nil
	}
	s.written.drop(o)
	return s.refused(doing, r, store.ErrStale)
}

// present returns the record that o may replace: as this Store has written it, or else as it reads it. With
// ErrStale and ErrOrder it returns the one that it has read.
func (s *Store) present(ctx context.Context, doing string, o holdfast.Owner) (record, error) {
	if r, known := s.written.get(o.Key); known && r.Revision == o.Revision && r.State.CanBecome(o.State) {
		return r, nil
	}
	r, err := read(ctx, s, fmt.Sprintf("get %s", o.Key), sessionPrefix+string(o.Key), s.decodeRecord)
	switch {
	case errors.Is(err, holdfast.ErrNotFound):
		return record{}, fmt.Errorf("%s: %w", doing, store.ErrStale)
	case err != nil:
		return record{}, fmt.Errorf("%s: %w", doing, err)
	case r.Revision != o.Revision:
		return r, fmt.Errorf("%s: %w", doing, store.ErrStale)
	case !r.State.CanBecome(o.State):
		return r, fmt.Errorf("%s from %s to %s: %w", doing, r.State, o.State, store.ErrOrder)
	}
	return r, nil
}

// Get returns a record.
func (s *Store) Get(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	return read(ctx, s, fmt.Sprintf("get %s", key), sessionPrefix+string(key), s.decodeOwner)
}

// findBatch is the number of records that one transaction reads; see releaseBatch.
const findBatch = 100

// Find returns records, 100 in a round trip.
func (s *Store) Find(ctx context.Context, keys ...holdfast.SessionKey) ([]holdfast.Owner, error) {
	if err := s.Ping(ctx); err != nil {
		return nil, err
	}
	var owners []holdfast.Owner
	for batch := range slices.Chunk(slices.Sorted(slices.Values(keys)), findBatch) {
		var reads []clientv3.Op
		for _, key := range batch {
			reads = append(reads, clientv3.OpGet(sessionPrefix+string(key)))
		}
		r, err := s.do(ctx, fmt.Sprintf("find %d sessions", len(keys)), clientv3.OpTxn(nil, reads, nil))
		if err != nil {
			return nil, err
		}
		for _, one := range r.Txn().Responses {
			owners = append(owners, s.decodeOwners(one.GetResponseRange().GetKvs())...)
		}
	}
	return owners, nil
}

// decodeOwners leaves out records that cannot be read.
func (s *Store) decodeOwners(kvs []*mvccpb.KeyValue) (owners []holdfast.Owner) {
	for _, kv := range kvs {
		o, err := s.decodeOwner(kv)
		if err != nil {
			s.unreadable(err)
			continue
		}
		owners = append(owners, o)
	}
	return owners
}

// List returns all records.
func (s *Store) List(ctx context.Context) ([]holdfast.Owner, holdfast.Revision, error) {
	owners, at, err := s.listAt(ctx, 0)
	if err == nil {
		s.lists.Add(owners, at)
	}
	return owners, at, err
}

// listPage is the number of records in one request, about half a mebibyte. A list of
// all records in one response would have to be made, sent and read within the timeout
// of one call, and 100,000 records are 45 MiB.
const listPage = 1000

// listAt lists the records as they were at a revision, 0 for now.
func (s *Store) listAt(ctx context.Context, at holdfast.Revision) ([]holdfast.Owner, holdfast.Revision, error) {
	owners := []holdfast.Owner{}
	raw := int64(0)
	if at != 0 {
		raw = s.raw(at)
	}
	from, end := sessionPrefix, clientv3.GetPrefixRangeEnd(sessionPrefix)
	for {
		answer, err := s.do(ctx, "list sessions", clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(listPage), clientv3.WithRev(raw)))
		if errors.Is(err, rpctypes.ErrFutureRev) {
			s.past.Notice()
		}
		if err != nil {
			return nil, 0, err
		}
		r := answer.Get()
		if raw == 0 {
			raw = r.Header.Revision // the same for all pages
		}
		owners = append(owners, s.decodeOwners(r.Kvs)...)
		if !r.More || len(r.Kvs) == 0 {
			return owners, s.revision(raw), nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// unreadable logs a record that another program, or a later version of this one, has
// written. Such a session cannot be claimed or served, so lists and watches leave it
// out.
func (s *Store) unreadable(err error) { s.log.Error("a record is left out", "error", err) }

// Close ends the connection and the calls in progress; later ones fail.
func (s *Store) Close() error {
	err := s.client.Close()
	s.calls.Close()
	if errors.Is(err, context.Canceled) { // clientv3 returns it from every Close: its own context is cancelled
		return nil
	}
	return err
}
