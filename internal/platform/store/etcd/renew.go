package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/internal/platform/store"
)

// KeepAlive renews a lease. It writes nothing to disk.
func (s *Store) KeepAlive(ctx context.Context, id store.LeaseID) error {
	_, err := call(ctx, s, fmt.Sprintf("renew lease %x", int64(id)), func(ctx context.Context) (struct{}, error) {
		err := s.renew(ctx, clientv3.LeaseID(id))
		if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) || ctx.Err() != nil {
			return struct{}{}, err
		}
		_, err = s.client.KeepAliveOnce(ctx, clientv3.LeaseID(id)) // by a stream of its own
		return struct{}{}, err
	})
	return err
}

// renewals is the stream of a store's renewals. The client's KeepAliveOnce opens a stream for each
// renewal, of each member in turn. That costs etcd up to nine times the CPU of a renewal by an open
// stream of the leader: every other member asks the leader by HTTP (docs/scale.md).
//
// The stream carries one renewal at a time, and ends with the first that fails. So a late answer is
// not taken for the answer to a later renewal.
type renewals struct {
	mu     sync.Mutex                              // held during a renewal
	stream etcdserverpb.Lease_LeaseKeepAliveClient // nil if there is none
	end    context.CancelFunc
	term   uint64 // Raft's term of the last answer
	moves  int    // streams that were ended in this term because another member leads

	leader atomic.Uint64 // the member that leads in this term; 0 if it is not known
}

// errBusy means that another renewal has the stream.
var errBusy = errors.New("another renewal has the stream")

// renew renews a lease by the stream. Errors: errBusy, rpctypes.ErrLeaseNotFound, those of the stream.
func (s *Store) renew(ctx context.Context, id clientv3.LeaseID) error {
	r := &s.renewals
	if !r.mu.TryLock() {
		return errBusy
	}
	defer r.mu.Unlock()
	life := ctx
	if r.stream == nil {
		life, r.end = context.WithCancel(s.client.Ctx())
	}
	inTime := context.AfterFunc(ctx, r.end)
	answer, err := r.exchange(life, s.client, id)
	if !inTime() || err != nil || s.elsewhere(answer.Header) {
		r.end()
		r.stream = nil
	}
	if err == nil && answer.TTL <= 0 {
		return rpctypes.ErrLeaseNotFound
	}
	return err
}

// exchange sends a renewal and receives the answer. life is that of a stream that it opens.
func (r *renewals) exchange(life context.Context, c *clientv3.Client, id clientv3.LeaseID) (*etcdserverpb.LeaseKeepAliveResponse, error) {
	if r.stream == nil {
		var err error
		if r.stream, err = clientv3.RetryLeaseClient(c).LeaseKeepAlive(life); err != nil {
			return nil, err
		}
	}
	if err := r.stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return nil, err
	}
	return r.stream.Recv()
}

// elsewhere reports whether a stream of another member should be tried, because the one that answered
// does not lead. The client opens streams of its members in turn. If no configured endpoint
// belongs to the leader, the store stays with the last stream.
func (s *Store) elsewhere(answer *etcdserverpb.ResponseHeader) bool {
	r := &s.renewals
	if term := answer.GetRaftTerm(); term != r.term {
		r.term, r.moves = term, 0
		r.leader.Store(0)
		s.calls.Go(func(ctx context.Context) { s.findLeader(ctx, term) })
	}
	leader := r.leader.Load()
	if leader == 0 || leader == answer.GetMemberId() || r.moves == 3*len(s.client.Endpoints()) {
		return false
	}
	r.moves++
	return true
}

// findLeader asks any member for the leader of a term. A renewal does not wait for it.
func (s *Store) findLeader(ctx context.Context, term uint64) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	status, err := etcdserverpb.NewMaintenanceClient(s.client.ActiveConnection()).Status(ctx, &etcdserverpb.StatusRequest{})
	if err == nil && status.RaftTerm == term {
		s.renewals.leader.Store(status.Leader)
	}
}
