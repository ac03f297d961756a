package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/platform/store"
)

// counted counts requests.
type counted struct {
	clientv3.KV
	requests int
}

func (c *counted) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	c.requests++
	return c.KV.Do(ctx, op)
}

// A record that a Store has written advances with one request, one of another Store with two. A Store
// whose record another one has advanced learns of it.
func TestAdvanceRequests(t *testing.T) {
	conf := startCluster(t).config()
	conf.Timeout = 20 * time.Second
	s, other := dial(t, conf), dial(t, conf)
	kv := &counted{KV: s.client.KV}
	s.client.KV = kv
	id, _, err := s.Grant(t.Context(), time.Hour)
	must(t, err)
	claimed, err := s.Claim(t.Context(), holdfast.Owner{Key: "a", Node: "n", State: holdfast.Claimed}, id)
	must(t, err)
	next := claimed
	next.State = holdfast.Starting
	starting, err := s.Advance(t.Context(), next)
	must(t, err)
	if kv.requests != 2 {
		t.Errorf("a claim and an advance made %d requests; want 2", kv.requests)
	}

	next = starting
	next.State = holdfast.Ready
	ready, err := other.Advance(t.Context(), next)
	must(t, err)
	if got, err := s.Advance(t.Context(), next); !errors.Is(err, store.ErrStale) || got != ready {
		t.Errorf("Advance of an old record = %+v, %v; want %+v and ErrStale", got, err, ready)
	}

	kv.requests = 0
	next = ready
	next.State = holdfast.Leaving
	leaving, err := s.Advance(t.Context(), next)
	must(t, err)
	if kv.requests != 2 {
		t.Errorf("an advance of another's record made %d requests; want 2", kv.requests)
	}
	if got, err := other.Get(t.Context(), "a"); err != nil || got != leaving || got.Node != "n" || got.Epoch != claimed.Epoch {
		t.Errorf("the record is %+v, %v; want %+v", got, err, leaving)
	}

	if _, err := s.Release(t.Context(), leaving); err != nil {
		t.Fatal(err)
	}
	if len(s.written.all) != 0 {
		t.Errorf("the store remembers %+v after it was released", s.written.all)
	}
}
