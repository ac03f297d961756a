package puller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// safe hangs for one registry until it is released, on fake time.
type safe struct {
	release chan struct{}
	asked   atomic.Int32
}

func (s *safe) Login(_ context.Context, image string) (engine.Login, error) {
	if image == "other.example.org/app:1" {
		return engine.Login{Username: "bob"}, nil
	}
	s.asked.Add(1)
	<-s.release
	return engine.Login{Username: "alice"}, nil
}

// A query that hangs is made once, and delays only the first callers. A late answer is
// used.
func TestLoginThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &safe{release: make(chan struct{})}
		l := newLogins(s)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if got, err := l.get(t.Context(), "r.example.org/app:1"); err == nil || holdfast.HintOf(err) == "" {
					t.Errorf("%+v, %v", got, err)
				} else if spinup.CauseOf(errors.Join(errors.New("unauthorized"), err)) != spinup.Denied {
					t.Errorf("%v hides why the pull failed", err)
				}
			})
		}
		begun := time.Now()
		all.Wait()
		if took := time.Since(begun); took != loginLimit {
			t.Errorf("the first waited %v", took)
		}
		if got, err := l.get(t.Context(), "r.example.org/other:1"); err == nil || time.Since(begun) != loginLimit {
			t.Errorf("one after them waited: %+v, %v", got, err)
		}
		if got, err := l.get(t.Context(), "other.example.org/app:1"); err != nil || got.Username != "bob" {
			t.Errorf("another registry's: %+v, %v", got, err)
		}
		if n := s.asked.Load(); n != 1 {
			t.Errorf("it was asked %d times", n)
		}
		close(s.release)
		synctest.Wait()
		if got, err := l.get(t.Context(), "r.example.org/app:1"); err != nil || got.Username != "alice" {
			t.Errorf("after it answered: %+v, %v", got, err)
		}
	})
}

// If the first caller leaves, the other callers still get the answer.
func TestLoginOutlivesWhoAskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &safe{release: make(chan struct{})}
		l := newLogins(s)
		first, cancel := context.WithCancel(t.Context())
		go func() {
			if _, err := l.get(first, "r.example.org/app:1"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		synctest.Wait()
		second := make(chan engine.Login, 1)
		go func() {
			got, err := l.get(t.Context(), "r.example.org/app:2")
			if err != nil {
				t.Error(err)
			}
			second <- got
		}()
		cancel()
		synctest.Wait()
		close(s.release)
		if got := <-second; got.Username != "alice" || s.asked.Load() != 1 {
			t.Errorf("%+v, asked %d times", got, s.asked.Load())
		}
	})
}

// hosts are logins by image.
type hosts map[string]engine.Login

func (h hosts) Login(_ context.Context, image string) (engine.Login, error) { return h[image], nil }

// A mirror gets its own login. A host whose name is not that of a registry gets none, above all not
// that of Docker's own registry.
func TestLoginAtAMirror(t *testing.T) {
	l := newLogins(hosts{"m.example.org:5000/mirror": {Username: "alice"}, "mirror/mirror": {Username: "hub"}, "docker.io/mirror": {Username: "hub"}})
	for host, want := range map[string]string{"m.example.org:5000": "alice", "other.example.org": "", "mirror": "", "docker.io": "", "": "", "m.example.org:5000/x": ""} {
		if got, err := l.at(t.Context(), host); err != nil || got.Username != want {
			t.Errorf("%q: %+v, %v, want %q", host, got, err, want)
		}
	}
	if got, err := newLogins(nil).at(t.Context(), "m.example.org:5000"); err != nil || got != (engine.Login{}) {
		t.Errorf("no logins: %+v, %v", got, err)
	}
}
