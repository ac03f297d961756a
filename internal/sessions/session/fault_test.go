package session

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/store"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/memstore"
)

// lossy is a store that loses the first answer to each kind of write after the write
// was done.
type lossy struct {
	store.Store
	mu   sync.Mutex
	lost map[string]bool
	late func(write func()) // if set, it runs the write of the next claim later
}

func (l *lossy) lose(what string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost[what] {
		return nil
	}
	l.lost[what] = true
	return fmt.Errorf("%s: answer lost: %w", what, holdfast.ErrStore)
}

// later hands a write to late, if that is set. It does so with the lock held: a test that has
// reset late can wait for the writes.
func (l *lossy) later(write func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.late
	l.late = nil
	if late != nil {
		late(write)
	}
	return late != nil
}

func (l *lossy) Claim(ctx context.Context, o holdfast.Owner, id store.LeaseID) (holdfast.Owner, error) {
	if l.later(func() { _, _ = l.Store.Claim(context.Background(), o, id) }) { // the result does not matter
		return holdfast.Owner{}, fmt.Errorf("claim: no answer: %w", holdfast.ErrStore)
	}
	got, err := l.Store.Claim(ctx, o, id)
	if lost := l.lose("claim"); lost != nil {
		return holdfast.Owner{}, lost
	}
	return got, err
}

func (l *lossy) Advance(ctx context.Context, o holdfast.Owner) (holdfast.Owner, error) {
	got, err := l.Store.Advance(ctx, o)
	if lost := l.lose("advance " + string(o.State)); lost != nil {
		return holdfast.Owner{}, lost
	}
	return got, err
}

func (l *lossy) Release(ctx context.Context, o ...holdfast.Owner) ([]holdfast.SessionKey, error) {
	got, err := l.Store.Release(ctx, o...)
	if lost := l.lose("release"); lost != nil {
		return nil, lost
	}
	return got, err
}

// lossyEngine loses the first answers to create and start.
type lossyEngine struct {
	engine.Engine
	lossy *lossy
}

func (l lossyEngine) Create(ctx context.Context, s engine.Spec) (string, error) {
	id, err := l.Engine.Create(ctx, s)
	if l.lossy.lose("create") != nil {
		return "", fmt.Errorf("create: answer lost: %w", holdfast.ErrEngine)
	}
	return id, err
}

func (l lossyEngine) Start(ctx context.Context, id string) error {
	err := l.Engine.Start(ctx, id)
	if l.lossy.lose("start") != nil {
		return fmt.Errorf("start: answer lost: %w", holdfast.ErrEngine)
	}
	return err
}

func TestLostAnswersMakeNoSecondContainer(t *testing.T) {
	mem := memstore.New(1000)
	lost := &lossy{Store: mem, lost: map[string]bool{}}
	n := newNode(t, setup{store: mem, faulty: lost, engine: lossyEngine{openEngine(t), lost}})
	// Adopt has already lost the answer to a release.
	delete(lost.lost, "release")
	r := n.serve(t, "alice")
	if err := answers(r); err != nil {
		t.Error(err)
	}
	if got := n.containers(t); len(got) != 1 {
		t.Errorf("%d containers", len(got))
	}
	for _, what := range []string{"claim", "advance starting", "advance ready", "create", "start"} {
		if !lost.lost[what] {
			t.Errorf("no answer to %s was lost: nothing was tested", what)
		}
	}
	if _, err := n.Stop(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	n.empty(t)
}

func TestStoreThatIsAwayDelaysABoot(t *testing.T) {
	n := newNode(t, setup{})
	n.store.SetDown(true)
	done := make(chan holdfast.Route, 1)
	go func() { done <- n.serve(t, "alice") }()
	select {
	case <-done:
		t.Fatal("a session was ready although it could not be claimed")
	case <-time.After(300 * time.Millisecond):
	}
	n.store.SetDown(false)
	if err := answers(<-done); err != nil {
		t.Error(err)
	}
}

// slowReady is a store that takes slowWrite for each write that makes a session ready.
type slowReady struct{ store.Store }

func (s slowReady) Advance(ctx context.Context, o holdfast.Owner) (holdfast.Owner, error) {
	if o.State == holdfast.Ready {
		time.Sleep(slowWrite)
	}
	return s.Store.Advance(ctx, o)
}

// The last write to the store is in no phase of a boot: the log says that a client waited
// for it.
func TestLogNamesASlowStore(t *testing.T) {
	fake, mem := newFakeEngine(t), memstore.New(1000)
	t.Cleanup(fake.close)
	n, watcher := unstarted(t, setup{store: mem, faulty: slowReady{mem}, engine: fake, cfg: Config{Templates: []Template{anywhere(t)}}})
	var log bytes.Buffer
	n.log = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := n.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.run(t, watcher)
	n.serve(t, "alice")
	n.end()
	if want := "the store took long to write a session's record\" session=alice state=ready"; !strings.Contains(log.String(), want) {
		t.Errorf("the log lacks %q:\n%s", want, &log)
	}
}

func TestStoreThatIsAwayDelaysAReleaseAndTheNextBoot(t *testing.T) {
	n := newNode(t, setup{})
	first := n.serve(t, "alice")
	n.store.SetDown(true)
	stopped := make(chan error, 1)
	go func() { _, err := n.Stop(context.Background(), "alice"); stopped <- err }()
	<-first.Left
	done := make(chan holdfast.Route, 1)
	go func() { done <- n.serve(t, "alice") }()
	select {
	case <-done:
		t.Fatal("a second container started while the first was still owned")
	case <-time.After(300 * time.Millisecond):
	}
	n.store.SetDown(false)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if again := <-done; again.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
	}
}

// ownEngine starts an engine that one test may stop. containerd always leaves its
// containers running.
func ownEngine(t *testing.T, liveRestore bool) (labtest.Daemon, engine.Engine) {
	t.Helper()
	if labtest.OnContainerd() {
		if !liveRestore {
			t.Skip("-on-containerd: it never takes its containers along")
		}
		api, e := labtest.Containerd(t)
		return e, api
	}
	e := labtest.Private(t, lab.Options{LiveRestore: liveRestore})
	api, err := docker.Open(t.Context(), docker.Config{Host: e.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	return e, api
}

func TestEngineThatIsRestartedUnderSessions(t *testing.T) {
	t.Run("live restore: they go on", func(t *testing.T) {
		daemon, api := ownEngine(t, true)
		n := newNode(t, setup{engine: api})
		r := n.serve(t, "alice")
		if err := daemon.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if again := n.serve(t, "alice"); again.ContainerID != r.ContainerID {
			t.Errorf("%s became %s", r.ContainerID, again.ContainerID)
		}
		if err := answers(r); err != nil {
			t.Error(err)
		}
		if _, err := n.Stop(t.Context(), "alice"); err != nil {
			t.Error(err)
		}
		n.empty(t)
	})
	t.Run("without: the request waits for the engine", func(t *testing.T) {
		daemon, api := ownEngine(t, false)
		n := newNode(t, setup{engine: api})
		r := n.serve(t, "alice")
		if err := daemon.StopDaemon(); err != nil {
			t.Fatal(err)
		}
		<-r.Left // the engine has stopped its containers
		done := make(chan holdfast.Route, 1)
		go func() { done <- n.serve(t, "alice") }()
		select {
		case <-done:
			t.Fatal("a session became ready without an engine")
		case <-time.After(300 * time.Millisecond):
		}
		if err := daemon.StartDaemon(t.Context()); err != nil {
			t.Fatal(err)
		}
		again := <-done
		if again.Epoch <= r.Epoch {
			t.Errorf("epoch %d after %d", again.Epoch, r.Epoch)
		}
		if err := answers(again); err != nil {
			t.Error(err)
		}
	})
}
