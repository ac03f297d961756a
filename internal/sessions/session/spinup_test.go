package session

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/test/poll"
)

// ear records spin-ups.
type ear struct {
	mu       sync.Mutex
	records  []spinup.Record
	underWay int
	most     int
}

func (e *ear) Cohort() spinup.Cohort { return spinup.Cohort{Driver: "aufs"} }

func (e *ear) Begin(spinup.Kind, string) func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.underWay++
	e.most = max(e.most, e.underWay)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.underWay--
	}
}

func (e *ear) Record(r spinup.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.records = append(e.records, r)
}

// heard waits until there are n records and no spin-up is in progress.
func (e *ear) heard(t *testing.T, n int) []spinup.Record {
	t.Helper()
	var got []spinup.Record
	poll.Until(t, "all spin-ups are recorded", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		got = slices.Clone(e.records)
		return len(got) >= n && e.underWay == 0
	})
	if len(got) != n {
		t.Errorf("%d records: %+v", len(got), got)
	}
	for _, r := range got {
		if err := r.Validate(); err != nil || r.Cohort.Driver != "aufs" {
			t.Errorf("%+v: %v", r, err)
		}
	}
	return got
}

func TestEveryBootIsASpinup(t *testing.T) {
	e := &ear{}
	n, fake := fakeNode(t, setup{heard: e})
	fake.missing["none"] = true
	fake.pulling = make(chan struct{})
	var booted sync.WaitGroup
	for _, key := range []holdfast.SessionKey{"a", "b", "c"} {
		booted.Go(func() { n.serve(t, key) })
	}
	poll.Until(t, "all boots wait for the image", func() bool {
		n.pulls.mu.Lock()
		defer n.pulls.mu.Unlock()
		p := n.pulls.byImage["none"]
		return p != nil && p.waiting == 3
	})
	close(fake.pulling)
	booted.Wait()
	n.serve(t, "d")
	jobs, cached, joined := []string{}, 0, 0
	for _, r := range e.heard(t, 4) {
		jobs = append(jobs, r.Job)
		if r.Kind != spinup.ForSession || r.Outcome != spinup.OK || r.Container == "" || r.Name == "" || r.Pull == nil || !r.Pull.Done {
			t.Errorf("%+v", r)
		}
		for _, phase := range []spinup.Phase{spinup.Create, spinup.Start, spinup.Ready} {
			if _, ok := r.Times[phase]; !ok {
				t.Errorf("%s has no time of %s: %v", r.Job, phase, r.Times)
			}
		}
		if r.Pull.Cached {
			cached++
		}
		if r.Pull.Joined {
			joined++
		}
	}
	slices.Sort(jobs)
	if !slices.Equal(jobs, []string{"a", "b", "c", "d"}) || e.most < 3 {
		t.Errorf("spin-ups of %v, %d at once", jobs, e.most)
	}
	if cached != 1 || joined != 2 {
		t.Errorf("%d found the image on the host, want 1; %d joined a pull, want 2", cached, joined)
	}
}

func TestFailedBootIsAFailedSpinup(t *testing.T) {
	t.Run("pull", func(t *testing.T) {
		e := &ear{}
		n, fake := fakeNode(t, setup{heard: e})
		fake.missing["none"] = true
		fake.noPull = errors.New("manifest unknown")
		if _, _, err := n.Acquire(t.Context(), "alice", ""); err == nil {
			t.Fatal("the session became ready")
		}
		if r := e.heard(t, 1)[0]; r.Outcome != spinup.Failed || r.Failed != spinup.Download || r.Cause != spinup.NoImage || r.Error == "" || r.Container != "" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("init step", func(t *testing.T) {
		e := &ear{}
		tmpl := anywhere(t)
		tmpl.Steps = []Step{shell("bad", "exit 3")}
		n, fake := fakeNode(t, setup{heard: e, cfg: Config{Templates: []Template{tmpl}}})
		fake.stepCode = 3
		if _, _, err := n.Acquire(t.Context(), "alice", ""); err == nil {
			t.Fatal("the session became ready")
		}
		// The step's container started; the session's own was never created.
		got := e.heard(t, 2)
		if got[0].Outcome != spinup.OK || got[1].Outcome != spinup.Failed || got[1].Failed != "" || got[1].Image != tmpl.Image {
			t.Errorf("%+v", got)
		}
	})
	t.Run("called off", func(t *testing.T) {
		e := &ear{}
		n, fake := fakeNode(t, setup{heard: e})
		fake.missing["none"] = true
		fake.pulling = make(chan struct{}) // never closed
		failed := make(chan error, 1)
		go func() { _, _, err := n.Acquire(context.Background(), "alice", ""); failed <- err }()
		poll.Until(t, "the image is pulled", func() bool { return pullsOf(fake) == 1 })
		if _, err := n.Stop(t.Context(), "alice"); err != nil {
			t.Fatal(err)
		}
		<-failed
		if r := e.heard(t, 1)[0]; r.Outcome != spinup.Stopped || r.Cause != spinup.Canceled {
			t.Errorf("%+v", r)
		}
	})
	t.Run("elsewhere", func(t *testing.T) {
		e := &ear{}
		n, _ := fakeNode(t, setup{heard: e})
		theirs(t, n.store, "alice")
		if _, _, err := n.Acquire(t.Context(), "alice", ""); err == nil {
			t.Fatal("the session became ready")
		}
		e.heard(t, 0)
	})
}

func TestImageFetchedAheadIsAPull(t *testing.T) {
	e := &ear{}
	n, fake := fakeNode(t, setup{heard: e})
	fake.missing["none"] = true
	for range 2 { // the second one is not recorded
		if err := n.Fetch(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	if r := e.heard(t, 1)[0]; r.Kind != spinup.ForPull || r.Image != "none" || r.Outcome != spinup.OK || !r.Pull.Done || r.Pull.Cached {
		t.Errorf("%+v", r)
	}
}
