package puller

import (
	"context"
	"iter"
	"sync"
	"time"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// manifestLimit bounds how long a manifest is asked for.
const manifestLimit = 30 * time.Second

// stream is one pull on its way. Events that come before the engine has said
// what it is wait in early: what they mean depends on its image store.
type stream struct {
	options spinup.Options
	asking  *asking
	pass    *pass
	sizesOf func(ctx context.Context) (map[string]int64, error) // nil: nobody is asked
	begin   sync.Once                                           // of asking for the manifest
	ctx     context.Context                                     // of what goes on beside the pull
	cancel  context.CancelFunc
	beside  sync.WaitGroup

	mu      sync.Mutex
	reducer *spinup.Reducer // nil until the engine has said what it is
	early   []engine.PullEvent
	shared  []string // layers that another pull of ours fetches, not given to reducer yet
	sizes   map[string]int64
}

func (p *Puller) newStream(q Request, login engine.Login, begun time.Time, asking *asking) *stream {
	s := &stream{
		options: spinup.Options{Image: q.Image, Begun: begun}, asking: asking,
		pass: p.chains.enter(),
	}
	// It goes on for as long as the pull is read, and close ends it.
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if p.c.Manifests != nil {
		s.sizesOf = func(ctx context.Context) (map[string]int64, error) {
			sizes, err := p.c.Manifests.Sizes(ctx, q.Image, q.Platform, login)
			if err != nil && ctx.Err() == nil {
				p.c.Log.Debug("the sizes of an image's layers", "image", q.Image, "error", err)
			}
			return sizes, err
		}
	}
	s.beside.Go(func() {
		select {
		case <-asking.done:
			s.know(asking.info)
		case <-s.ctx.Done():
		}
	})
	return s
}

// close ends what goes on beside the pull, and waits for it.
func (s *stream) close() {
	s.cancel()
	s.beside.Wait()
	s.pass.leave()
}

// read takes the events until the stream ends, and returns its error.
func (s *stream) read(events iter.Seq2[engine.PullEvent, error]) error {
	for ev, err := range events {
		if err != nil {
			return err
		}
		s.add(ev)
	}
	return nil
}

func (s *stream) add(ev engine.PullEvent) {
	// An image that is there needs no manifest: only what is fetched has a
	// size to be learnt.
	if ev.Layer != "" && ev.Status != "Already exists" {
		s.begin.Do(s.askSizes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ev.Layer != "" && s.pass.shares(ev.Layer, ev.Status == "Already exists") {
		s.shared = append(s.shared, ev.Layer)
	}
	if s.reducer == nil {
		s.early = append(s.early, ev)
		return
	}
	s.give(ev)
}

// give has the reducer take an event. The caller holds mu.
func (s *stream) give(ev engine.PullEvent) {
	for _, id := range s.shared {
		s.reducer.Share(id)
	}
	s.shared = nil
	s.reducer.Add(ev)
}

// know begins to reduce for the engine's image store.
func (s *stream) know(info engine.Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reducer != nil {
		return
	}
	s.options.ImageStore = info.ImageStore
	s.reducer = spinup.NewReducer(s.options)
	s.reducer.Know(s.sizes)
	for _, ev := range s.early {
		s.give(ev)
	}
	s.early = nil
}

// askSizes asks for the manifest beside the pull.
func (s *stream) askSizes() {
	if s.sizesOf == nil {
		return
	}
	s.beside.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, manifestLimit)
		defer cancel()
		sizes, err := s.sizesOf(ctx)
		if err != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sizes = sizes
		if s.reducer != nil {
			s.reducer.Know(sizes)
		}
	})
}

// tell gives progress the figures now and then, until stop is called.
func (s *stream) tell(progress func(spinup.Pull)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	end := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			progress(s.at(time.Now()))
			select {
			case <-end:
				return
			case <-t.C:
			}
		}
	})
	return func() {
		close(end)
		telling.Wait()
	}
}

// at are the figures as of now.
func (s *stream) at(now time.Time) spinup.Pull {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reducer == nil {
		return spinup.NewReducer(s.options).At(now)
	}
	return s.reducer.At(now)
}

// finish returns the whole pull's figures and its error.
func (s *stream) finish(failed error) (spinup.Pull, error) {
	ended := time.Now()
	// Without the engine's answer the stream is read as that of a graph
	// driver, which has more to tell.
	s.know(s.asking.wait())
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reducer.Finish(ended, failed)
}
