package embedded

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"holdfast/internal/platform/store"
)

// lease is a lease. Its end is not on disk: a renewal writes nothing.
type lease struct {
	ID      store.LeaseID `json:"id"`
	TTL     time.Duration `json:"ttl"`
	expires time.Time
	timer   *time.Timer
}

func leaseKey(id store.LeaseID) string { return strconv.FormatInt(int64(id), 10) }

// Grant makes a lease. The TTL is rounded up to whole seconds.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	ttl = max((ttl + time.Second - 1).Truncate(time.Second), time.Second) // as etcd does
	id, err := do(ctx, s, "grant a lease", func(st *state) (store.LeaseID, error) {
		if err := s.disk.Room(); err != nil {
			return 0, err
		}
		// A random number: a store that was set back to a backup must not grant a lease again.
		l := &lease{ID: store.LeaseID(rand.Int64() | 1), TTL: ttl, expires: time.Now().Add(ttl)}
		if err := st.set(leaseBucket, leaseKey(l.ID), l); err != nil {
			return 0, err
		}
		st.leases[l.ID] = l
		s.watchLease(l.ID, l)
		return l.ID, nil
	})
	return id, ttl, err
}

// KeepAlive renews a lease.
func (s *Store) KeepAlive(ctx context.Context, id store.LeaseID) error {
	_, err := do(ctx, s, fmt.Sprintf("renew lease %x", int64(id)), func(st *state) (struct{}, error) {
		l := st.leases[id]
		if l == nil || !time.Now().Before(l.expires) {
			return struct{}{}, store.ErrLeaseGone
		}
		l.expires = time.Now().Add(l.TTL)
		l.timer.Reset(l.TTL)
		return struct{}{}, nil
	})
	return err
}

// Revoke ends a lease.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	_, err := do(ctx, s, fmt.Sprintf("revoke lease %x", int64(id)), func(st *state) (struct{}, error) {
		st.end(id)
		return struct{}{}, nil
	})
	return err
}

// expireAgain is the pause after which a lease is ended again, if the disk was full.
const expireAgain = time.Second

// watchLease ends the lease when its time is over.
func (s *Store) watchLease(id store.LeaseID, l *lease) {
	l.timer = time.AfterFunc(time.Until(l.expires), func() {
		// A call that cannot begin finds the store closed.
		_ = s.enter(&call{done: make(chan struct{}), run: func(st *state) error {
			l := st.leases[id]
			if l == nil || time.Now().Before(l.expires) { // it was renewed meanwhile
				return nil
			}
			l.timer.Reset(expireAgain)
			st.end(id)
			return nil
		}})
	})
}

// end deletes the lease with all records under it, in one revision.
func (st *state) end(id store.LeaseID) {
	l := st.leases[id]
	if l == nil {
		return
	}
	st.unset(leaseBucket, leaseKey(id))
	delete(st.leases, id)
	st.Revision++
	for node, r := range st.nodes {
		if r.Lease == id {
			st.unset(nodeBucket, string(node))
			delete(st.nodes, node)
		}
	}
	for name, r := range st.notes {
		if r.Lease == id {
			st.unset(noteBucket, name)
			delete(st.notes, name)
		}
	}
	for _, o := range st.owners() {
		if st.sessions[o.Key].Lease == id {
			st.delete(o.Key)
		}
	}
}
