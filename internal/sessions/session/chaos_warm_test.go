package session

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool/container"
	"holdfast/test/poll"
)

// chaosPool provides the warm containers of consecutive agents.
type chaosPool struct {
	dir  string
	pool *container.Pool
	stop func() // as if the agent were killed

	mu    sync.Mutex
	given map[string]int // how often each container was handed out
}

func newChaosPool(t *testing.T) *chaosPool {
	dir, err := os.MkdirTemp("", "hf") // short, because the paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &chaosPool{dir: dir, given: map[string]int{}}
}

// next creates the pool of the next agent. Calling run, after the adoption, fills it.
func (p *chaosPool) next(t *testing.T, fake *fakeEngine, tmpl Template) (run func()) {
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	const most = 3
	p.pool = container.New(container.Config{Dir: p.dir, Templates: []container.Template{{
		Name: tmpl.Name, Image: tmpl.Image, Most: most,
		Spec:  func(name, dir, label string) engine.Spec { return tmpl.WarmSpec("n1", name, dir, container.Dir, label) },
		Await: tmpl.Await,
	}}}, container.Deps{
		Engine: fake, Opener: opener, Killer: &kill.Killer{}, Deadman: holding{&recorder{fake: fake}},
		Metrics: container.NewMetrics(prometheus.NewRegistry()), Log: testLog(t),
	})
	p.stop = func() {}
	return func() {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = p.pool.Run(ctx) })
		p.stop = func() { cancel(); running.Wait() }
		t.Cleanup(p.stop)
		poll.Until(t, "the containers are warm", func() bool { return p.pool.Counts()[0].Ready == most })
	}
}

// holding is a deadman that accepts every target.
type holding struct{ *recorder }

func (h holding) Hold(t *kill.Target) error {
	h.note("hold", t.ID, true)
	return nil
}

func (p *chaosPool) Ready(template string) bool { return p.pool.Ready(template) }

func (p *chaosPool) Take(template string) (WarmContainer, bool) {
	c := p.pool.Take(template)
	if c == nil {
		return nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given[c.ID()]++
	return c, true
}

// judge checks the history of every warm container.
func (p *chaosPool) judge(t *testing.T, fake *fakeEngine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.given) == 0 {
		t.Error("no warm container was claimed: nothing was tested")
	}
	for id, n := range p.given {
		if n != 1 {
			t.Errorf("%s was handed out %d times", short(id), n)
		}
	}
	fake.set(func() {
		for _, id := range fake.heard {
			if p.given[id] == 0 {
				t.Errorf("%s got an identity, and belonged to no session", short(id))
			}
		}
	})
}
