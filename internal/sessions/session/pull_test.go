package session

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"holdfast"

	"holdfast/test/poll"
)

// pullsOf returns the number of pulls of the fake engine.
func pullsOf(f *fakeEngine) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.pulled)
}

func TestBootsOfOneImageShareAPull(t *testing.T) {
	n, fake := fakeNode(t, setup{cfg: Config{Boots: 1}})
	fake.missing["none"] = true
	fake.pulling = make(chan struct{})
	var booted sync.WaitGroup
	for _, key := range []holdfast.SessionKey{"a", "b", "c", "d"} {
		booted.Go(func() { n.serve(t, key) })
	}
	// All boots pull, although one boots at a time: a pull occupies no slot.
	poll.Until(t, "all boots wait for the image", func() bool {
		n.pulls.mu.Lock()
		defer n.pulls.mu.Unlock()
		p := n.pulls.byImage["none"]
		return p != nil && p.waiting == 4
	})
	fetched := make(chan error, 1)
	go func() { fetched <- n.Fetch(context.Background(), "web") }()
	close(fake.pulling)
	booted.Wait()
	if err := <-fetched; err != nil {
		t.Error(err)
	}
	if got := pullsOf(fake); got != 1 {
		t.Errorf("%d pulls", got)
	}
	if err := n.Fetch(t.Context(), ""); err != nil || pullsOf(fake) != 1 {
		t.Errorf("Fetch of a present image: %v, %d pulls", err, pullsOf(fake))
	}
	if err := n.Fetch(t.Context(), "nothing"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("Fetch of an unknown template: %v", err)
	}
}

func TestPullWithoutWaitersEnds(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	fake.missing["none"] = true
	fake.pulling = make(chan struct{}) // never closed
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		fetched := make(chan error, 1)
		before := pullsOf(fake)
		go func() { fetched <- n.Fetch(ctx, "") }()
		poll.Until(t, "the image is pulled", func() bool { return pullsOf(fake) == before+1 })
		cancel()
		if err := <-fetched; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		n.pulls.mu.Lock()
		if left := len(n.pulls.byImage); left > 0 {
			t.Errorf("%d pulls continue", left)
		}
		n.pulls.mu.Unlock()
	}
}

func TestPullThatFailsSaysWhatToDo(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	fake.missing["none"] = true
	fake.noPull = errors.New("denied")
	_, _, err := n.Acquire(t.Context(), "alice", "")
	var boot *holdfast.BootError
	if !errors.As(err, &boot) || boot.Phase != "pull" || !strings.Contains(err.Error(), "denied") || holdfast.HintOf(err) == "" {
		t.Errorf("%v (hint %q)", err, holdfast.HintOf(err))
	}
	n.empty(t)
}
