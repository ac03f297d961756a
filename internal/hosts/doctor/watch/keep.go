package watch

import "time"

// sampleEvery is the period of a sample, which is written to disk with one sync.
const sampleEvery = time.Minute

// keep adds a round's facts to the sample of this minute.
func (w *Watch) keep(now time.Time, facts map[string]float64) {
	if now.Sub(w.sample.At) >= sampleEvery {
		w.keepSample(now)
	}
	w.sample.add(facts)
}

// keepSample stores the sample and begins the next. Once an hour it merges old samples.
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

// lost records what could not be stored; the watch continues.
func (w *Watch) lost(n int, err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	w.status.Cost.Lost += int64(n)
	w.mu.Unlock()
	w.deps.Log.Warn("doctor: what was found is not kept", "records", n, "err", err)
}
