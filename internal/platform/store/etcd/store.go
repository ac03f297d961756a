package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Store is a store.Store in etcd, made by Dial or Server.Store.
type Store struct {
	client  *clientv3.Client
	log     *slog.Logger
	timeout time.Duration // of one call
	where   string        // the hint for an etcd that does not answer
	quota   string        // the hint for an etcd that has reached its quota
	lists   store.Lists

	inFlight inFlight

	// Of the embedded server only, nil otherwise:

	room func() error // returns an error if the disk has no room for a write
	dead *failure     // the server's failure
}

var _ store.Store = (*Store)(nil)

// Grant makes a lease. etcd counts in whole seconds: ttl is rounded up.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	const doing = "grant a lease"
	if err := s.checkRoom(doing); err != nil {
		return 0, 0, err
	}
	seconds := max(int64((ttl+time.Second-1)/time.Second), 1)
	r, err := call(ctx, s, doing, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return s.client.Grant(ctx, seconds)
	})
	if err != nil {
		return 0, 0, err
	}
	return store.LeaseID(r.ID), time.Duration(r.TTL) * time.Second, nil
}

// KeepAlive renews a lease. It writes nothing to disk.
func (s *Store) KeepAlive(ctx context.Context, id store.LeaseID) error {
	_, err := call(ctx, s, fmt.Sprintf("renew lease %x", int64(id)), func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
		return s.client.KeepAliveOnce(ctx, clientv3.LeaseID(id))
	})
	return err
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
	if err := s.checkRoom(doing); err != nil {
		return err
	}
	value, err := encode(n)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	key := nodePrefix + string(n.ID)
	ours := clientv3.Compare(clientv3.LeaseValue(key), "=", clientv3.LeaseID(id))
	none := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	put := clientv3.OpPut(key, value, clientv3.WithLease(clientv3.LeaseID(id)))
	for _, condition := range []clientv3.Cmp{ours, none} { // none is for the first record only
		r, err := call(ctx, s, doing, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			return s.client.Txn(ctx).If(condition).Then(put).Commit()
		})
		if err != nil || r.Succeeded {
			return err
		}
	}
	return fmt.Errorf("%s: %w", doing, store.ErrNodeTaken)
}

// Node returns the record of a node whose lease lives.
func (s *Store) Node(ctx context.Context, id holdfast.NodeID) (holdfast.Node, error) {
	doing := fmt.Sprintf("get node %s", id)
	r, err := call(ctx, s, doing, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, nodePrefix+string(id))
	})
	if err != nil {
		return holdfast.Node{}, err
	}
	if len(r.Kvs) == 0 {
		return holdfast.Node{}, fmt.Errorf("%s: %w", doing, holdfast.ErrNotFound)
	}
	n, err := decodeNode(r.Kvs[0])
	if err != nil {
		return holdfast.Node{}, fmt.Errorf("%s: %w", doing, err)
	}
	return n, nil
}

// Nodes lists the nodes.
func (s *Store) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	const doing = "list nodes"
	r, err := call(ctx, s, doing, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, nodePrefix, clientv3.WithPrefix())
	})
	if err != nil {
		return nil, err
	}
	nodes := make([]holdfast.Node, 0, len(r.Kvs))
	for _, kv := range r.Kvs {
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
	if err := s.checkRoom(doing); err != nil {
		return holdfast.Owner{}, err
	}
	value, err := encodeOwner(o)
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, err)
	}
	key := sessionPrefix + string(o.Key)
	r, err := call(ctx, s, doing, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, value, clientv3.WithLease(clientv3.LeaseID(id))), clientv3.OpDelete(leftKey(o.Key), clientv3.WithPrevKV())).
			Else(clientv3.OpGet(key)).
			Commit()
	})
	if err != nil {
		return holdfast.Owner{}, err
	}
	if r.Succeeded {
		o.SuspendNote = leftIn(r)
		o.Epoch, o.Revision = holdfast.Epoch(r.Header.Revision), holdfast.Revision(r.Header.Revision)
		return o, nil
	}
	present, err := found(r)
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, err)
	}
	return present, fmt.Errorf("%s: %w", doing, store.ErrTaken)
}

// Advance replaces a record in two round trips: it reads the present state, and then
// writes if the revision is still the same.
func (s *Store) Advance(ctx context.Context, o holdfast.Owner) (holdfast.Owner, error) {
	doing := fmt.Sprintf("advance %s", o.Key)
	if err := s.checkRoom(doing); err != nil {
		return holdfast.Owner{}, err
	}
	present, err := s.Get(ctx, o.Key)
	switch {
	case errors.Is(err, holdfast.ErrNotFound):
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, store.ErrStale)
	case err != nil:
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, err)
	case present.Revision != o.Revision:
		return present, fmt.Errorf("%s: %w", doing, store.ErrStale)
	case !present.State.CanBecome(o.State):
		return present, fmt.Errorf("%s from %s to %s: %w", doing, present.State, o.State, store.ErrOrder)
	}
	o.Node, o.Epoch = present.Node, present.Epoch
	value, err := encodeOwner(o)
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, err)
	}
	key := sessionPrefix + string(o.Key)
	r, err := call(ctx, s, doing, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", int64(o.Revision))).
			Then(clientv3.OpPut(key, value, clientv3.WithIgnoreLease())).
			Else(clientv3.OpGet(key)).
			Commit()
	})
	if err != nil {
		return holdfast.Owner{}, err
	}
	if r.Succeeded {
		o.Revision = holdfast.Revision(r.Header.Revision)
		return o, nil
	}
	present, err = found(r)
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, err)
	}
	return present, fmt.Errorf("%s: %w", doing, store.ErrStale)
}

// Get returns a record.
func (s *Store) Get(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	doing := fmt.Sprintf("get %s", key)
	r, err := call(ctx, s, doing, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, sessionPrefix+string(key))
	})
	if err != nil {
		return holdfast.Owner{}, err
	}
	if len(r.Kvs) == 0 {
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, holdfast.ErrNotFound)
	}
	o, err := decodeOwner(r.Kvs[0])
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("%s: %w", doing, err)
	}
	return o, nil
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
	const doing = "list sessions"
	owners := []holdfast.Owner{}
	from, end := sessionPrefix, clientv3.GetPrefixRangeEnd(sessionPrefix)
	for {
		r, err := call(ctx, s, doing, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(listPage), clientv3.WithRev(int64(at)))
		})
		if err != nil {
			return nil, 0, err
		}
		if at == 0 {
			at = holdfast.Revision(r.Header.Revision) // the same for all pages
		}
		for _, kv := range r.Kvs {
			o, err := decodeOwner(kv)
			if err != nil {
				s.unreadable(err)
				continue
			}
			owners = append(owners, o)
		}
		if !r.More || len(r.Kvs) == 0 {
			return owners, at, nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// unreadable logs a record that another program, or a later version of this one, has
// written. Such a session cannot be claimed or served, so lists and watches leave it
// out.
func (s *Store) unreadable(err error) { s.log.Error("a record is left out", "error", err) }

// Ping counts the sessions. It shows that etcd answers and accepts the credentials.
func (s *Store) Ping(ctx context.Context) error {
	_, err := call(ctx, s, "count sessions", func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, sessionPrefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	})
	return err
}

// Close ends the connection and the calls in progress; later ones fail. The store of
// an embedded server is closed by Server.Close.
func (s *Store) Close() error {
	err := ignoreCancel(s.client.Close())
	s.inFlight.end()
	return err
}
