package gc

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"holdfast/internal/platform/engine"
)

// tracker follows what uses images, and networks and volumes where the policy is
// about them, and keeps it. Its methods may be called from
// any goroutine.
type tracker struct {
	engine Engine
	store  *Store
	policy Config
	log    *slog.Logger

	mu   sync.Mutex
	news Uses // not on disk yet
	// recent are the uses that came in by events, also when they are on disk.
	recent map[string]time.Time
	// blind is until when uses may have been missed, as far as is known here.
	blind time.Time
}

// flushEvery is how often news are written to disk. What a crash loses of them
// the engine's own memory of events has, or it counts as unknown.
const flushEvery = 10 * time.Second

// maxNews bounds what is kept in memory; it makes a flush come earlier.
const maxNews = 10_000

// Run follows the engine's events until ctx is done.
func (t *tracker) Run(ctx context.Context) error {
	before, err := t.store.Uses()
	if err != nil {
		return err
	}
	activity := make(chan engine.Activity, 1024)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(activity)
		for a := range t.engine.Activity(ctx, before.Seen, time.Time{}) {
			select {
			case activity <- a:
			case <-ctx.Done():
				return
			}
		}
	})
	defer reading.Wait()
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case a, ok := <-activity:
			if !ok {
				return t.flush()
			}
			t.note(ctx, a)
		case <-tick.C:
			t.keep()
		}
	}
}

// note takes one use in.
func (t *tracker) note(ctx context.Context, a engine.Activity) {
	if a.Gap {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.blind = latest(t.blind, a.Time)
		t.news.Blind, t.news.Seen = latest(t.news.Blind, a.Time), latest(t.news.Seen, a.Time)
		return
	}
	if key := t.keyOf(ctx, a); key != "" {
		t.used(key, a.Time)
	}
}

// keyOf is the key of what was used, "" where nobody needs to know.
func (t *tracker) keyOf(ctx context.Context, a engine.Activity) string {
	switch {
	case a.Network != "" && t.policy.means(Networks):
		return networkKey(a.Network)
	case a.Volume != "" && t.policy.means(Volumes):
		return volumeKey(a.Volume)
	case a.Image == "" || strings.HasPrefix(a.Image, "sha256:"):
		return a.Image
	}
	img, _, err := t.engine.InspectImage(ctx, a.Image)
	if err != nil {
		// Gone, or under another name by now: then who has the name now
		// is not who was used.
		if !errors.Is(err, engine.ErrNoImage) && ctx.Err() == nil {
			t.log.Debug("whose use this is", "image", a.Image, "err", err)
		}
		return ""
	}
	return img.ID
}

// used keeps one use. Where there is no room for it that is not passed over: all
// may have been used then.
func (t *tracker) used(key string, at time.Time) {
	if t.crowded(key) {
		t.keep()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.news.Last == nil {
		t.news.Last = map[string]time.Time{}
	}
	if put(t.news.Last, key, at) {
		t.news.Seen = latest(t.news.Seen, at)
	} else {
		t.missed()
	}
	if t.recent == nil {
		t.recent = map[string]time.Time{}
	}
	if !put(t.recent, key, at) {
		// The uses are kept, and each plan knows those before it: only one
		// that is being carried out does not know all that it should.
		t.recent = map[string]time.Time{key: at}
		t.blind = latest(t.blind, time.Now())
	}
}

// missed says that uses until now may not be known. The caller holds mu.
func (t *tracker) missed() {
	now := time.Now()
	t.blind = latest(t.blind, now)
	t.news.Blind, t.news.Seen = latest(t.news.Blind, now), latest(t.news.Seen, now)
}

// crowded reports whether there is no room for another key before a flush.
func (t *tracker) crowded(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, there := t.news.Last[key]
	return !there && len(t.news.Last) >= maxNews
}

// put keeps the later time, and reports whether there was room.
func put(uses map[string]time.Time, key string, at time.Time) bool {
	before, there := uses[key]
	if !there && len(uses) >= maxNews {
		return false
	}
	uses[key] = latest(before, at)
	return true
}

// catchUp takes in what happened until now, for who does not Run.
func (t *tracker) catchUp(ctx context.Context, now time.Time) error {
	before, err := t.store.Uses()
	if err != nil {
		return err
	}
	if _, err := t.engine.Info(ctx); err != nil {
		return err // Activity has no error: of an engine that is away nothing is known
	}
	for a := range t.engine.Activity(ctx, before.Seen, now) {
		t.note(ctx, a)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	t.news.Seen = latest(t.news.Seen, now)
	t.mu.Unlock()
	t.keep()
	return nil
}

// last is what is known, on disk and not yet.
func (t *tracker) last() (Uses, error) {
	u, err := t.store.Uses()
	t.mu.Lock()
	defer t.mu.Unlock()
	u.merge(t.news)
	return u, err
}

// usedSince reports whether what has the key was used after then, as far as events
// have come in, or may have been: a gap counts that was found after the plan was
// made, which knows of those before.
func (t *tracker) usedSince(key string, then, planned time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.recent[key].After(then) || t.blind.After(latest(then, planned))
}

// keep flushes. On a disk that is full of garbage that it cannot must end nothing:
// the store says it, and what is not written is known here all the same.
func (t *tracker) keep() { _ = t.flush() }

// flush writes the news.
func (t *tracker) flush() error {
	t.mu.Lock()
	news := t.news
	t.news = Uses{}
	t.mu.Unlock()
	if len(news.Last) == 0 && news.Seen.IsZero() && news.Blind.IsZero() {
		return nil
	}
	err := t.store.Note(news)
	if err != nil {
		t.mu.Lock()
		t.news.merge(news)
		t.mu.Unlock()
	}
	return err
}

// settle keeps the uses that a State was made with: what was unknown is now, and
// grows old from here. What is gone is forgotten.
func (t *tracker) settle(s State) {
	u := Uses{Last: make(map[string]time.Time, len(s.Images)+len(s.Volumes))}
	for _, img := range s.Images {
		u.Last[img.ID] = img.LastUse
	}
	for _, v := range s.Volumes {
		u.Last[volumeKey(v.Name)] = v.LastUse
	}
	named := map[string]bool{}
	for _, c := range s.Containers {
		for _, v := range c.Volumes {
			u.Last[volumeKey(v)] = s.Now
		}
		for _, n := range c.Networks {
			named[n] = true
		}
	}
	for _, n := range s.Networks {
		u.Last[networkKey(n.ID)] = n.LastUse
		if named[n.ID] || named[n.Name] {
			u.Last[networkKey(n.ID)] = s.Now
		}
	}
	// Where it cannot be written the store says so; it is forgotten later.
	_ = t.store.Forget(func(key string) bool {
		_, ok := u.Last[key]
		return ok || strings.HasPrefix(key, volumeKey("")) && s.Volumes == nil || strings.HasPrefix(key, networkKey("")) && s.Networks == nil
	})
	t.mu.Lock()
	t.news.merge(u)
	t.mu.Unlock()
	t.keep()
}
