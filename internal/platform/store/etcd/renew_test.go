package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/bench/rig"
	"holdfast/internal/platform/store"
)

// startThree starts a cluster of three members, each in a process of its own.
func startThree(t *testing.T) *rig.Cluster {
	t.Helper()
	c, err := rig.NewCluster(rig.ClusterOptions{Members: 3, Dir: t.TempDir(), Role: []string{"/proc/self/exe", rig.RoleMember}})
	must(t, err)
	t.Cleanup(c.Stop)
	must(t, c.Start(t.Context()))
	return c
}

// leader returns the id of the member that leads, and its endpoint.
func leader(t *testing.T, c *rig.Cluster, s *Store) (id uint64, endpoint string) {
	t.Helper()
	m, err := c.Leader(t.Context())
	must(t, err)
	status, err := s.client.Status(t.Context(), m.Client)
	must(t, err)
	return status.Leader, m.Client
}

// by returns the member that answers a renewal by the store's stream.
func (s *Store) by(t *testing.T, id store.LeaseID) uint64 {
	t.Helper()
	s.renewals.mu.Lock()
	defer s.renewals.mu.Unlock()
	if s.renewals.stream == nil {
		return 0
	}
	answer, err := s.renewals.exchange(t.Context(), s.client, clientv3.LeaseID(id))
	must(t, err)
	return answer.Header.MemberId
}

// untilBy renews until the leader answers the renewals.
func (s *Store) untilBy(t *testing.T, id store.LeaseID, leader uint64) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); s.by(t, id) != leader; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("renewals are answered by member %x; want the leader, %x", s.by(t, id), leader)
		}
		must(t, s.KeepAlive(t.Context(), id))
	}
}

// Renewals find the leader and stay with its stream. They follow it to another member, of its own
// will or by its death, and none fails by that.
func TestRenewalsFollowTheLeader(t *testing.T) {
	c := startThree(t)
	s, err := Dial(t.Context(), Config{Endpoints: c.Endpoints(), Timeout: 20 * time.Second})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	lease, _, err := s.Grant(t.Context(), time.Hour)
	must(t, err)

	first, endpoint := leader(t, c, s)
	s.untilBy(t, lease, first)
	stream := s.renewals.stream
	for range 20 {
		must(t, s.KeepAlive(t.Context(), lease))
	}
	if s.renewals.stream != stream {
		t.Error("the store left the stream of the leader")
	}

	members, err := s.client.MemberList(t.Context())
	must(t, err)
	next := members.Members[0].ID
	if next == first {
		next = members.Members[1].ID
	}
	direct, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	must(t, err)
	defer direct.Close()
	_, err = direct.MoveLeader(t.Context(), next)
	must(t, err)
	s.untilBy(t, lease, next)

	dead, err := c.Leader(t.Context())
	must(t, err)
	dead.Kill()
	must(t, s.KeepAlive(t.Context(), lease))
	last, _ := leader(t, c, s)
	s.untilBy(t, lease, last)
}

// If the configured endpoints do not contain the leader, the store stays with one stream.
func TestRenewalsWithoutTheLeader(t *testing.T) {
	c := startThree(t)
	leads, err := c.Leader(t.Context())
	must(t, err)
	follower := c.Members[0].Client
	if leads == c.Members[0] {
		follower = c.Members[1].Client
	}
	s, err := Dial(t.Context(), Config{Endpoints: []string{follower}, Timeout: 20 * time.Second})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	lease, _, err := s.Grant(t.Context(), time.Hour)
	must(t, err)
	for range 50 { // it learns which member leads, and looks for it
		must(t, s.KeepAlive(t.Context(), lease))
	}
	if s.renewals.leader.Load() == 0 {
		t.Error("the store did not learn which member leads")
	}
	stream := s.renewals.stream
	for range 20 {
		must(t, s.KeepAlive(t.Context(), lease))
	}
	if stream == nil || s.renewals.stream != stream {
		t.Error("the store does not stay with one stream")
	}
}

// Renewals of several leases at a time get each its own answer.
func TestRenewalsAtOnce(t *testing.T) {
	conf := startCluster(t).config()
	conf.Timeout = 20 * time.Second
	s := dial(t, conf)
	var wg sync.WaitGroup
	for i := range 6 {
		id, _, err := s.Grant(t.Context(), time.Hour)
		must(t, err)
		var want error
		if i%2 == 0 {
			must(t, s.Revoke(t.Context(), id))
			want = store.ErrLeaseGone
		}
		wg.Go(func() {
			for range 50 {
				if err := s.KeepAlive(t.Context(), id); !errors.Is(err, want) {
					t.Errorf("KeepAlive = %v; want %v", err, want)
				}
			}
		})
	}
	wg.Wait()
}

// The answer to a renewal that was given up is not taken for that to the next.
func TestRenewalGivenUp(t *testing.T) {
	c := startCluster(t)
	link := newLink(t, strings.TrimPrefix(c.endpoint, "https://"))
	conf := c.config()
	conf.Endpoints = []string{"https://" + link.addr()}
	conf.Timeout = 20 * time.Second
	s := dial(t, conf)
	id, _, err := s.Grant(t.Context(), time.Hour)
	must(t, err)
	must(t, s.KeepAlive(t.Context(), id))
	link.cut(true)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.KeepAlive(short, id); err == nil {
		t.Fatal("a renewal succeeded while the connection was cut")
	}
	link.cut(false)
	if err := s.KeepAlive(t.Context(), id+1); !errors.Is(err, store.ErrLeaseGone) {
		t.Errorf("KeepAlive of a lease that never was = %v; want ErrLeaseGone", err)
	}
}
