package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/internal/platform/store"
)

func testLeaseExpires(t *testing.T, s store.Store) {
	_, at := list(t, s)
	events := watch(t, s, at)
	short, long := grant(t, s, ttl), longLease(t, s)
	claim(t, s, "a", short)
	b := advance(t, s, claim(t, s, "b", short), holdfast.Ready) // stays under its lease
	kept := claim(t, s, "kept", long)
	must(t, s.PutNode(t.Context(), holdfast.Node{ID: "n1"}, short))
	for range 4 {
		next(t, events)
	}
	first, second := next(t, events), next(t, events)
	if first.Key > second.Key {
		first, second = second, first
	}
	if !first.Deleted || first.Key != "a" || !second.Deleted || second.Key != "b" {
		t.Errorf("after expiry came %+v and %+v; want a and b deleted", first, second)
	}
	if second.Revision <= b.Revision || second.Owner != (holdfast.Owner{}) {
		t.Errorf("the delete is %+v; want a later revision than %d and no record", second, b.Revision)
	}
	owners, _ := list(t, s)
	if d := cmp.Diff([]holdfast.Owner{kept}, owners); d != "" {
		t.Errorf("left after expiry (-want +got):\n%s", d)
	}
	if nodes, err := s.Nodes(t.Context()); err != nil || len(nodes) != 0 {
		t.Errorf("nodes after expiry: %v, %v", nodes, err)
	}
	if err := s.KeepAlive(t.Context(), short); !errors.Is(err, store.ErrLeaseGone) {
		t.Errorf("KeepAlive after expiry = %v; want ErrLeaseGone", err)
	}
}

func testLeaseRenewed(t *testing.T, s store.Store) {
	id := grant(t, s, 2*ttl)
	want := claim(t, s, "a", id)
	for range 4 { // twice the TTL
		time.Sleep(ttl)
		must(t, s.KeepAlive(t.Context(), id))
	}
	got, err := s.Get(t.Context(), "a")
	must(t, err)
	if got != want {
		t.Errorf("the record is %v; want %v", got, want)
	}
}

func testLeaseGone(t *testing.T, s store.Store) {
	const never store.LeaseID = 12345
	if err := s.KeepAlive(t.Context(), never); !errors.Is(err, store.ErrLeaseGone) {
		t.Errorf("KeepAlive = %v; want ErrLeaseGone", err)
	}
	if err := s.PutNode(t.Context(), holdfast.Node{ID: "n1"}, never); !errors.Is(err, store.ErrLeaseGone) {
		t.Errorf("PutNode = %v; want ErrLeaseGone", err)
	}
	if err := s.Revoke(t.Context(), never); err != nil {
		t.Errorf("Revoke of a lease that is gone = %v; want nil", err)
	}
}

func testLeaseRevoked(t *testing.T, s store.Store) {
	id, other := longLease(t, s), longLease(t, s)
	claim(t, s, "a", id)
	kept := claim(t, s, "b", other)
	must(t, s.PutNode(t.Context(), holdfast.Node{ID: "n1"}, id))
	_, at := list(t, s)
	events := watch(t, s, at)
	must(t, s.Revoke(t.Context(), id))
	if e := next(t, events); e.Key != "a" || !e.Deleted {
		t.Errorf("after Revoke came %+v; want a deleted", e)
	}
	owners, _ := list(t, s)
	if d := cmp.Diff([]holdfast.Owner{kept}, owners); d != "" {
		t.Errorf("left after Revoke (-want +got):\n%s", d)
	}
	if err := s.KeepAlive(t.Context(), id); !errors.Is(err, store.ErrLeaseGone) {
		t.Errorf("KeepAlive after Revoke = %v; want ErrLeaseGone", err)
	}
	if nodes, err := s.Nodes(t.Context()); err != nil || len(nodes) != 0 {
		t.Errorf("nodes after Revoke: %v, %v", nodes, err)
	}
}

func testNodes(t *testing.T, s store.Store) {
	id := longLease(t, s)
	n1 := holdfast.Node{
		ID: "n1", Address: "10.0.0.1:7070", Version: "1", Draining: true, Sessions: 3, CPULoad: 0.5,
		Memory: holdfast.Memory{Total: 2, Available: 1}, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	must(t, s.PutNode(t.Context(), holdfast.Node{ID: "n2"}, id))
	must(t, s.PutNode(t.Context(), holdfast.Node{ID: "n1"}, id))
	must(t, s.PutNode(t.Context(), n1, id))
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	if d := cmp.Diff([]holdfast.Node{n1, {ID: "n2"}}, nodes); d != "" {
		t.Errorf("nodes (-want +got):\n%s", d)
	}
	one, err := s.Node(t.Context(), "n1")
	must(t, err)
	if d := cmp.Diff(n1, one); d != "" {
		t.Errorf("node n1 (-want +got):\n%s", d)
	}
	if _, err := s.Node(t.Context(), "n"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("a node without a record: %v", err)
	}
	if owners, _ := list(t, s); len(owners) != 0 {
		t.Errorf("nodes are listed as sessions: %v", owners)
	}
	must(t, s.Revoke(t.Context(), id))
	if _, err := s.Node(t.Context(), "n1"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("a node whose lease has ended: %v", err)
	}
}

func testNodeMoves(t *testing.T, s store.Store) {
	old, fresh := longLease(t, s), longLease(t, s)
	first := holdfast.Node{ID: "n1", Address: "10.0.0.1:7070"}
	second := holdfast.Node{ID: "n1", Address: "10.0.0.2:7070"}
	must(t, s.PutNode(t.Context(), first, old))
	if err := s.PutNode(t.Context(), second, fresh); !errors.Is(err, store.ErrNodeTaken) {
		t.Errorf("PutNode beside a record of another lease = %v; want ErrNodeTaken", err)
	}
	n, err := s.Node(t.Context(), "n1")
	must(t, err)
	if d := cmp.Diff(first, n); d != "" {
		t.Errorf("n1 (-want +got):\n%s", d)
	}
	must(t, s.Revoke(t.Context(), old))
	must(t, s.PutNode(t.Context(), second, fresh))
	if err := s.PutNode(t.Context(), first, old); err == nil {
		t.Error("the old lease has the record back")
	}
	if nodes, err := s.Nodes(t.Context()); err != nil || len(nodes) != 1 || nodes[0].Address != second.Address {
		t.Errorf("nodes after the old lease ended: %v, %v; want the second n1", nodes, err)
	}
}

// Two hosts with one id start at once: one of them gets the id.
func testNodeRace(t *testing.T, s store.Store) {
	var ids [racers]store.LeaseID
	for i := range ids {
		ids[i] = longLease(t, s)
	}
	winner := oneWinner(t, race(func(i int) error {
		return s.PutNode(t.Context(), holdfast.Node{ID: "n1", Lease: int64(ids[i])}, ids[i])
	}), store.ErrNodeTaken)
	if n, err := s.Node(t.Context(), "n1"); err != nil || n.Lease != int64(ids[winner]) {
		t.Errorf("n1 is %v, %v; want the winner's", n, err)
	}
}
