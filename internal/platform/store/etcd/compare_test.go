package etcd

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
)

// TestLikeMemory runs random sequences of calls against etcd and against the store in
// memory, and compares the answers. Revisions are compared by use: every record that
// a call returned can be passed to a later call.
func TestLikeMemory(t *testing.T) {
	real := dial(t, startCluster(t).config())
	rapid.Check(t, func(rt *rapid.T) {
		_, err := real.client.Delete(t.Context(), prefix, clientv3.WithPrefix())
		if err != nil {
			rt.Fatal(err)
		}
		p := &pair{ctx: t.Context(), stores: [2]store.Store{real, memstore.New(4)}}
		rt.Repeat(map[string]func(*rapid.T){
			"grant":   p.grant,
			"revoke":  p.revoke,
			"claim":   p.claim,
			"advance": p.advance,
			"release": p.release,
			"node":    p.node,
			"":        p.same,
		})
		for _, ids := range p.leases {
			for i, s := range p.stores {
				if err := s.Revoke(t.Context(), ids[i]); err != nil {
					rt.Fatal(err)
				}
			}
		}
	})
}

// pair is two stores that get the same calls, and their answers.
type pair struct {
	ctx    context.Context
	stores [2]store.Store
	leases [][2]store.LeaseID
	owners [][2]holdfast.Owner // present and past records
}

var (
	keys   = rapid.SampledFrom([]holdfast.SessionKey{"a", "b", "c"})
	states = rapid.SampledFrom([]holdfast.State{holdfast.Claimed, holdfast.Starting, holdfast.Ready, holdfast.Leaving, "nonsense"})
)

// outcome is the kind of an error, as callers distinguish them.
func outcome(err error) error {
	for _, e := range []error{store.ErrTaken, store.ErrNodeTaken, store.ErrStale, store.ErrLeaseGone, store.ErrOrder, holdfast.ErrNotFound} {
		if errors.Is(err, e) {
			return e
		}
	}
	return err
}

// both calls both stores, compares the outcomes, and keeps the records.
func (p *pair) both(t *rapid.T, call func(i int, s store.Store) (holdfast.Owner, error)) {
	var owners [2]holdfast.Owner
	var errs [2]error
	for i, s := range p.stores {
		owners[i], errs[i] = call(i, s)
		errs[i] = outcome(errs[i])
	}
	if errs[0] != errs[1] {
		t.Fatalf("etcd says %v, memory %v", errs[0], errs[1])
	}
	if d := cmp.Diff(bare(owners[0]), bare(owners[1])); d != "" {
		t.Fatalf("different records (-etcd +memory):\n%s", d)
	}
	if owners[0].Key != "" {
		p.owners = append(p.owners, owners)
	}
}

// bare is a record without the fields that may differ between stores.
func bare(o holdfast.Owner) holdfast.Owner {
	o.Epoch, o.Revision = 0, 0
	return o
}

func (p *pair) lease(t *rapid.T) [2]store.LeaseID {
	if len(p.leases) == 0 {
		return [2]store.LeaseID{999, 999} // no such lease
	}
	return rapid.SampledFrom(p.leases).Draw(t, "lease")
}

func (p *pair) owner(t *rapid.T) [2]holdfast.Owner {
	if len(p.owners) == 0 {
		key := keys.Draw(t, "key")
		return [2]holdfast.Owner{{Key: key}, {Key: key}}
	}
	return rapid.SampledFrom(p.owners).Draw(t, "owner")
}

func (p *pair) grant(t *rapid.T) {
	var ids [2]store.LeaseID
	for i, s := range p.stores {
		var err error
		if ids[i], _, err = s.Grant(p.ctx, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	p.leases = append(p.leases, ids)
}

func (p *pair) revoke(t *rapid.T) {
	ids := p.lease(t)
	p.both(t, func(i int, s store.Store) (holdfast.Owner, error) {
		return holdfast.Owner{}, s.Revoke(p.ctx, ids[i])
	})
}

func (p *pair) claim(t *rapid.T) {
	ids, o := p.lease(t), holdfast.Owner{Key: keys.Draw(t, "key"), Node: "n1", State: holdfast.Claimed}
	p.both(t, func(i int, s store.Store) (holdfast.Owner, error) { return s.Claim(p.ctx, o, ids[i]) })
}

func (p *pair) advance(t *rapid.T) {
	owners, to := p.owner(t), states.Draw(t, "state")
	p.both(t, func(i int, s store.Store) (holdfast.Owner, error) {
		o := owners[i]
		o.State = to
		return s.Advance(p.ctx, o)
	})
}

func (p *pair) release(t *rapid.T) {
	picked := [][2]holdfast.Owner{p.owner(t), p.owner(t)}
	var released [2][]holdfast.SessionKey
	for i, s := range p.stores {
		var err error
		if released[i], err = s.Release(p.ctx, picked[0][i], picked[1][i]); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(released[0], released[1]) {
		t.Fatalf("etcd released %v, memory %v", released[0], released[1])
	}
}

func (p *pair) node(t *rapid.T) {
	ids, n := p.lease(t), holdfast.Node{ID: rapid.SampledFrom([]holdfast.NodeID{"n1", "n2"}).Draw(t, "node")}
	p.both(t, func(i int, s store.Store) (holdfast.Owner, error) {
		return holdfast.Owner{}, s.PutNode(p.ctx, n, ids[i])
	})
}

// same compares the whole content of the stores.
func (p *pair) same(t *rapid.T) {
	var owners [2][]holdfast.Owner
	var nodes [2][]holdfast.Node
	for i, s := range p.stores {
		list, _, err := s.List(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			owners[i] = append(owners[i], bare(o))
		}
		if nodes[i], err = s.Nodes(p.ctx); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(owners[0], owners[1]); d != "" {
		t.Fatalf("different sessions (-etcd +memory):\n%s", d)
	}
	if d := cmp.Diff(nodes[0], nodes[1]); d != "" {
		t.Fatalf("different nodes (-etcd +memory):\n%s", d)
	}
}
