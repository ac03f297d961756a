package puller

import (
	"context"
	"iter"
	"sync"
	"time"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// manifestLimit bounds the query of a manifest.
const manifestLimit = 30 * time.Second

// stream is one running pull. Events that come before the engine's info wait in
// early, because their meaning depends on the image store.
type stream struct {
	options spinup.Options
	info    *infoQuery
	pass    *pass
	sizesOf func(ctx context.Context) (map[string]int64, error) // nil: sizes are not queried
	begin   sync.Once                                           // of the query of the manifest
	ctx     context.Context                                     // of the work beside the pull
	cancel  context.CancelFunc
	beside  sync.WaitGroup

	mu      sync.Mutex
	reducer *spinup.Reducer // nil until the engine's info is known
	early   []engine.PullEvent
	shared  []string // layers that another pull of this Puller fetches, not yet given to reducer
	sizes   map[string]int64
}

func (p *Puller) newStream(q Request, login engine.Login, begun time.Time, info *infoQuery) *stream {
	s := &stream{
		options: spinup.Options{Image: q.Image, Begun: begun}, info: info,
		pass: p.chains.enter(),
	}
	// It lasts as long as the pull is read; close ends it.
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if p.c.Manifests != nil {
		s.sizesOf = func(ctx context.Context) (map[string]int64, error) {
			sizes, err := p.c.Manifests.Sizes(ctx, q.Image, q.Platform, login)
			if err != nil && ctx.Err() == nil {
				p.c.Log.Debug("reading the sizes of an image's layers", "image", q.Image, "error", err)
			}
			return sizes, err
		}
	}
	s.beside.Go(func() {
		select {
		case <-info.done:
			s.know(info.info)
		case <-s.ctx.Done():
		}
	})
	return s
}

// close ends the work beside the pull, and waits for it.
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
	// A present image needs no manifest: only fetched layers have a size to be
	// learnt.
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

// give passes an event to the reducer. The caller holds mu.
func (s *stream) give(ev engine.PullEvent) {
	for _, id := range s.shared {
		s.reducer.Share(id)
	}
	s.shared = nil
	s.reducer.Add(ev)
}

// know starts the reducer for the engine's image store.
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

// askSizes queries the manifest beside the pull.
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

// tell calls progress with the figures at intervals, until stop is called.
func (s *stream) tell(progress func(spinup.Pull)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(s.ctx)
	var telling sync.WaitGroup
	telling.Go(func() { _ = tasks.Every(ctx, progressEvery, func() { progress(s.at(time.Now())) }) })
	return func() {
		cancel()
		telling.Wait()
	}
}

// at returns the figures as of now.
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
	// Without the engine's info the stream is read as that of a graph driver,
	// which reports more.
	s.know(s.info.wait())
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reducer.Finish(ended, failed)
}
