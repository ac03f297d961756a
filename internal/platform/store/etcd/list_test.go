package etcd

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/platform/store"
)

// TestListIsOneMoment lists more records than fit in two pages while pairs of
// sessions are claimed, one in the first page and then one in the last. A list with
// the second has to have the first.
func TestListIsOneMoment(t *testing.T) {
	s := dial(t, startCluster(t).config())
	id, _, err := s.Grant(t.Context(), time.Hour)
	must(t, err)
	fill, ctx := errgroup.WithContext(t.Context())
	fill.SetLimit(64)
	const between = 2*listPage + 1
	for i := range between {
		fill.Go(func() error { return claimKey(ctx, s, id, fmt.Sprintf("m-%05d", i)) })
	}
	must(t, fill.Wait())

	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			for _, end := range []string{"a", "z"} {
				if err := claimKey(ctx, s, id, fmt.Sprintf("%s-%05d", end, i)); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		}
	})
	defer writing.Wait()
	defer cancel()
	for range 20 {
		owners, at, err := s.List(t.Context())
		must(t, err)
		listed := map[holdfast.SessionKey]bool{}
		var last holdfast.SessionKey
		count := 0
		for _, o := range owners {
			if o.Key <= last || o.Revision > at {
				t.Fatalf("%v comes after %s in a list at revision %d", o, last, at)
			}
			last, listed[o.Key] = o.Key, true
			if o.Key[0] == 'm' {
				count++
			}
			if o.Key[0] == 'z' && !listed["a"+o.Key[1:]] {
				t.Fatalf("the list at revision %d has %s and not the session claimed before it", at, o.Key)
			}
		}
		if count != between {
			t.Fatalf("the list has %d of %d sessions", count, between)
		}
	}
}

func claimKey(ctx context.Context, s store.Store, id store.LeaseID, key string) error {
	_, err := s.Claim(ctx, holdfast.Owner{Key: holdfast.SessionKey(key), Node: "n1", State: holdfast.Claimed}, id)
	return err
}

// TestRecordThatCannotBeReadHidesNoOther: another program has written a value among
// the records.
func TestRecordThatCannotBeReadHidesNoOther(t *testing.T) {
	s := dial(t, startCluster(t).config())
	id, _, err := s.Grant(t.Context(), time.Hour)
	must(t, err)
	for _, name := range []string{"a", "c"} {
		must(t, claimKey(t.Context(), s, id, name))
		must(t, s.PutNode(t.Context(), holdfast.Node{ID: holdfast.NodeID(name)}, id))
	}
	for _, key := range []string{sessionPrefix + "b", nodePrefix + "b"} {
		_, err := s.client.Put(t.Context(), key, `{"state": ["of", "a", "later", "version"], "sessions": "many"}`)
		must(t, err)
	}
	owners, at, err := s.List(t.Context())
	must(t, err)
	if len(owners) != 2 || owners[0].Key != "a" || owners[1].Key != "c" {
		t.Errorf("listed %v", owners)
	}
	nodes, err := s.Nodes(t.Context())
	must(t, err)
	if len(nodes) != 2 || nodes[0].ID != "a" || nodes[1].ID != "c" {
		t.Errorf("nodes %v", nodes)
	}
	// A watch skips it and goes on.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := s.Watch(ctx, at)
	_, err = s.client.Put(t.Context(), sessionPrefix+"b", "nor this")
	must(t, err)
	must(t, claimKey(t.Context(), s, id, "d"))
	if e := <-events; e.Key != "d" {
		t.Errorf("the watch yields %+v", e)
	}
	cancel()
	for range events {
	}
}
