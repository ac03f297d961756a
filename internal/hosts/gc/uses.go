package gc

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/platform/engine"
)

// tracker records the uses of images, and of networks and volumes if the policy
// applies to them, and saves them. Its methods may be called from any goroutine.
type tracker struct {
	engine Engine
	store  *Store
	policy Config
	log    *slog.Logger

	mu   sync.Mutex
	news Uses // not yet on disk
	// recent are the uses received as events, including those already on disk.
	recent map[string]time.Time
	// blind is the end of the last known period in which uses may have been
	// missed.
	blind time.Time
	// ids has the id of each image name that the engine has resolved since asked.
	ids   map[string]string
	asked time.Time
}

// idsKept is how long the id of a name is used again. The start of a container is two events with
// the name of its image. In a burst of starts most events have the same name.
const idsKept = time.Second

// flushEvery is the interval at which new uses are written to disk. After a crash
// the lost uses are read again from the engine's event history, or count as
// unknown.
const flushEvery = 10 * time.Second

// maxNews limits the uses kept in memory. At the limit they are flushed early.
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

// note records one use.
func (t *tracker) note(ctx context.Context, a engine.Activity) {
	if a.Gap {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.missed(a.Time)
		return
	}
	if key := t.keyOf(ctx, a); key != "" {
		t.used(key, a.Time)
	}
}

// keyOf returns the key of the used object, or "" if the policy does not need it.
func (t *tracker) keyOf(ctx context.Context, a engine.Activity) string {
	switch {
	case a.Network != "" && slices.Contains(t.policy.kinds(), Networks):
		return networkKey(a.Network)
	case a.Volume != "" && slices.Contains(t.policy.kinds(), Volumes):
		return volumeKey(a.Volume)
	case a.Image == "":
		return ""
	case strings.HasPrefix(a.Image, "sha256:"):
		t.mu.Lock()
		defer t.mu.Unlock()
		t.ids = nil // the event may have given a name to the image
		return a.Image
	}
	if id := t.known(a.Image); id != "" {
		return id
	}
	img, _, err := t.engine.InspectImage(ctx, a.Image)
	if err != nil {
		// The name is gone or may now belong to another image, so it does not
		// identify the image that was used.
		if !errors.Is(err, engine.ErrNoImage) && ctx.Err() == nil {
			t.log.Debug("resolving the image of an event", "image", a.Image, "err", err)
		}
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids == nil {
		t.ids, t.asked = map[string]string{}, time.Now()
	}
	t.ids[a.Image] = img.ID
	return img.ID
}

// known returns the image of a name, or "" if the engine has to be asked.
func (t *tracker) known(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.asked) > idsKept {
		t.ids = nil
	}
	return t.ids[name]
}

// used records one use. If there is no space for it, every object counts as
// possibly used.
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
		t.missed(time.Now())
	}
	if t.recent == nil {
		t.recent = map[string]time.Time{}
	}
	if !put(t.recent, key, at) {
		// The uses are saved, and each new plan includes them. Only a plan that
		// is being carried out lacks the dropped ones.
		t.recent = map[string]time.Time{key: at}
		t.blind = latest(t.blind, time.Now())
	}
}

// missed records that uses before the time may be unknown. The caller holds mu.
func (t *tracker) missed(before time.Time) {
	t.blind = latest(t.blind, before)
	t.news.Blind, t.news.Seen = latest(t.news.Blind, before), latest(t.news.Seen, before)
}

// crowded reports whether key does not fit without a flush.
func (t *tracker) crowded(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, there := t.news.Last[key]
	return !there && len(t.news.Last) >= maxNews
}

// put stores the later time and reports whether there was space.
func put(uses map[string]time.Time, key string, at time.Time) bool {
	before, there := uses[key]
	if !there && len(uses) >= maxNews {
		return false
	}
	uses[key] = latest(before, at)
	return true
}

// catchUp records the uses until now. It is for callers that do not Run.
func (t *tracker) catchUp(ctx context.Context, now time.Time) error {
	before, err := t.store.Uses()
	if err != nil {
		return err
	}
	if _, err := t.engine.Info(ctx); err != nil {
		return err // Activity returns no error: check first that the engine answers
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

// last returns the known uses, saved and unsaved.
func (t *tracker) last() (Uses, error) {
	u, err := t.store.Uses()
	t.mu.Lock()
	defer t.mu.Unlock()
	u.merge(t.news)
	return u, err
}

// usedSince reports whether the object with the key was, or may have been, used
// after then, by the events received so far. It counts a gap in the events only
// if it was found after planned; the plan already includes earlier gaps.
func (t *tracker) usedSince(key string, then, planned time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.recent[key].After(then) || t.blind.After(latest(then, planned))
}

// keep flushes and ignores the error. A full disk must not stop the collector:
// the store logs the error, and the uses stay in memory.
func (t *tracker) keep() { _ = t.flush() }

// flush writes the new uses to the store.
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

// settle saves the uses that a State was made with. Unknown times were set to now
// and age from here. Removed objects are forgotten.
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
	// If this cannot be written, the store logs it; the objects are forgotten
	// later.
	_ = t.store.Forget(func(key string) bool {
		_, ok := u.Last[key]
		return ok || strings.HasPrefix(key, volumeKey("")) && s.Volumes == nil || strings.HasPrefix(key, networkKey("")) && s.Networks == nil
	})
	t.mu.Lock()
	t.news.merge(u)
	t.mu.Unlock()
	t.keep()
}
