package watch

import "time"

// sampleEvery is how long a sample is: what is written to disk, with one sync.
const sampleEvery = time.Minute

// keep takes a round's facts into the sample of this minute.
func (w *Watch) keep(now time.Time, facts map[string]float64) {
	if now.Sub(w.sample.At) >= sampleEvery {
		w.keepSample(now)
	}
	w.sample.add(facts)
}

// keepSample writes the sample and begins the next. Once an hour old ones are
// joined.
func (w *Watch) keepSample(now time.Time) {
	one := w.sample
	w.sample = Sample{At: now.UTC()}
	if w.deps.Store == nil || len(one.Facts) == 0 {
		return
	}
	one.Seconds = now.Sub(one.At).Seconds()
	err := w.deps.Store.AddSample(one)
	if err == nil && now.Sub(w.compacted) >= compactEvery {
		w.compacted = now
		err = w.deps.Store.Compact(now)
	}
	w.lost(1, err)
}

func (w *Watch) keepEvents(events []Event) {
	if w.deps.Store == nil || len(events) == 0 {
		return
	}
	w.lost(len(events), w.deps.Store.AddEvents(events))
}

// lost notes what could not be kept: the watch goes on without.
func (w *Watch) lost(n int, err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	w.status.Cost.Lost += int64(n)
	w.mu.Unlock()
	w.deps.Log.Warn("doctor: what was found is not kept", "records", n, "err", err)
}
