package spinup

import (
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// ErrEndedEarly means that a pull's stream ended without an error and without a
// success message.
var ErrEndedEarly = errors.New("the engine's answer ended before the pull did")

// maxLayers bounds the layers kept of one pull. Images have at most a few hundred
// (overlay2 mounts 128).
const maxLayers = 4096

// Options are the known properties of a pull, apart from its stream.
type Options struct {
	// Image is the requested reference.
	Image string
	// Begun is when the pull was requested.
	Begun time.Time
	// ImageStore is engine.Info's.
	ImageStore string
	// Sizes are the compressed sizes of the layers in bytes by digest (or its
	// first 12 digits), from the manifest, if available; see Sizes.
	Sizes map[string]int64
}

// Reducer converts the stream of one pull to figures. One goroutine uses it.
type Reducer struct {
	options Options
	sizes   map[string]int64 // by short id
	layers  []*layer
	byID    map[string]*layer
	shared  map[string]bool // layers that another pull counts, by id

	last     time.Duration // of the latest event; never decreases
	resolved time.Duration // negative until the engine knew what to fetch
	digest   string
	done     bool // the engine reported that the image is present
	tooMany  bool
}

// NewReducer returns a reducer without events.
func NewReducer(o Options) *Reducer {
	r := &Reducer{options: o, sizes: map[string]int64{}, byID: map[string]*layer{}, shared: map[string]bool{}, resolved: -1}
	r.Know(o.Sizes)
	return r
}

// Know sets the layers' sizes, like Options.Sizes, from a manifest that was read
// during the pull.
func (r *Reducer) Know(sizes map[string]int64) {
	for digest, size := range sizes {
		id := shortID(digest)
		r.sizes[id] = bounded(size)
		if l := r.byID[id]; l != nil {
			l.given = bounded(size)
		}
	}
}

// Share marks a layer, by its short id, that another measured pull is fetching:
// the bytes count there, and here only the wait. It must be called before the
// layer's first event.
func (r *Reducer) Share(id string) { r.shared[id] = true }

// shortID returns a digest in the form in which the stream names layers.
func shortID(digest string) string {
	_, hex, ok := strings.Cut(digest, ":")
	if !ok {
		hex = digest
	}
	return hex[:min(len(hex), 12)]
}

// Reduce reads a whole stream, and returns the figures and the stream's error: nil
// means that the image is on this host. It may return ErrEndedEarly.
func Reduce(o Options, stream iter.Seq2[engine.PullEvent, error]) (Pull, error) {
	r := NewReducer(o)
	var failed error
	for ev, err := range stream {
		if err != nil {
			failed = err
			continue
		}
		r.Add(ev)
	}
	return r.Finish(time.Now(), failed)
}

// Add processes the next event. An event older than the last counts as
// simultaneous with it.
func (r *Reducer) Add(ev engine.PullEvent) {
	if ev.Times != nil {
		if l := r.byID[ev.Layer]; l != nil {
			l.correct(*ev.Times, r.options.Begun)
		}
		return
	}
	at := r.since(ev.Time)
	r.last = at
	if ev.Layer == "" {
		r.addWhole(ev, at)
		return
	}
	r.resolve(at)
	l := r.byID[ev.Layer]
	if l == nil {
		if len(r.layers) >= maxLayers {
			r.tooMany = true
			return
		}
		l = &layer{id: ev.Layer, state: Announced, announced: at, given: r.sizes[ev.Layer], shared: r.shared[ev.Layer]}
		r.byID[ev.Layer] = l
		r.layers = append(r.layers, l)
	}
	before := l.extracting
	l.add(ev, at, r.containerd())
	if l.extracting && !before && !r.containerd() {
		r.finishOthers(l, at)
	}
}

// finishOthers ends the extractions of all layers but one. Their "Pull complete" is
// lost: a graph driver starts to extract a layer when the layer below is done.
func (r *Reducer) finishOthers(but *layer, at time.Duration) {
	for _, l := range r.layers {
		if l != but && l.state == Extracting {
			l.finish(at)
		}
	}
}

// addWhole processes a line about the whole pull.
func (r *Reducer) addWhole(ev engine.PullEvent, at time.Duration) {
	if digest, ok := strings.CutPrefix(ev.Status, "Digest: "); ok {
		r.resolve(at)
		r.digest = digest
		r.finishOthers(nil, at)
	}
	if strings.HasPrefix(ev.Status, "Status: ") {
		r.done = true
	}
}

func (r *Reducer) resolve(at time.Duration) {
	if r.resolved < 0 {
		r.resolved = at
	}
}

func (r *Reducer) containerd() bool { return r.options.ImageStore == engine.ContainerdStore }

// polled reports whether the times of a layer are those of the engine's polls.
func (r *Reducer) polled(l *layer) bool { return r.containerd() && !l.exact }

// since returns t as time since the pull began, at least that of the last event.
func (r *Reducer) since(t time.Time) time.Duration {
	return max(t.Sub(r.options.Begun), r.last, 0)
}

// At returns the figures as of now, for progress reports. Open intervals end now.
func (r *Reducer) At(now time.Time) Pull { return r.figures(r.since(now)) }

// Finish returns the figures of the whole pull and its error: failed, or
// ErrEndedEarly.
func (r *Reducer) Finish(ended time.Time, failed error) (Pull, error) {
	if failed == nil && !r.done {
		failed = ErrEndedEarly
	}
	p := r.figures(r.since(ended))
	p.Done = failed == nil
	p.Cached = p.Done && !r.fetchedAny()
	return p, failed
}

// fetchedAny reports whether any layer was missing.
func (r *Reducer) fetchedAny() bool {
	return slices.ContainsFunc(r.layers, func(l *layer) bool { return l.state != Present })
}

func (r *Reducer) figures(now time.Duration) Pull {
	p := Pull{
		Image: r.options.Image, Digest: r.digest, Begun: r.options.Begun,
		Took: holdfast.Millis(now), Joined: r.joined(), Layers: make([]Layer, 0, len(r.layers)),
	}
	p.Resolve = p.Took
	if r.resolved >= 0 {
		p.Resolve = holdfast.Millis(r.resolved)
	}
	p.Download.Exact, p.Extract.Exact = !r.tooMany, !r.tooMany
	var downloads, retries, extracts []interval
	for _, l := range r.layers {
		l = l.asOf(now)
		if r.polled(l) && l.counts.first > 0 && len(l.download) > 0 {
			l.download[0].from = min(l.download[0].from, l.counts.begin(l.announced))
		}
		f := r.layerFigures(l, p.Joined || l.shared)
		p.Layers = append(p.Layers, f.Layer)
		if l.shared && !p.Joined {
			continue // the other pull counts it
		}
		p.Download.Bytes += f.Fetched
		p.Download.Exact = p.Download.Exact && !f.Unknown
		p.Extract.Bytes += f.extracted
		p.Extract.Exact = p.Extract.Exact && f.extractedExact
		p.Retries += f.Retries
		downloads = append(downloads, l.download...)
		retries = append(retries, l.retry...)
		extracts = append(extracts, f.extract...)
	}
	p.RetryWait = holdfast.Millis(union(retries))
	least := time.Duration(0)
	if slices.ContainsFunc(r.layers, r.polled) {
		least = 2 * poll // each end is off by up to one
	}
	p.Download.finish(downloads, p.Joined, least)
	p.Extract.finish(extracts, p.Joined, least)
	return p
}

// finish adds the times and the rate. A shorter time than least has no rate.
func (t *Transfer) finish(list []interval, joined bool, least time.Duration) {
	t.Wall, t.Sum = holdfast.Millis(union(list)), holdfast.Millis(sum(list))
	if t.Exact && !joined && time.Duration(t.Wall) >= least {
		t.Rate = rate(t.Bytes, time.Duration(t.Wall))
	}
}

// joined reports whether any layer shows that the pull joined another, or all
// layers are another's.
func (r *Reducer) joined() bool {
	own, shared := false, false
	for _, l := range r.layers {
		if l.shared {
			shared = true
			continue
		}
		own = own || l.state != Present
		// A layer that small may have arrived completely before it could be
		// detected.
		if l.joined || l.jumped && l.knownSize() > firstSlack || r.polled(l) && l.counts.joined(l.announced) {
			return true
		}
	}
	return shared && !own
}

// figure is a layer's figures with the additional data for the sums.
type figure struct {
	Layer
	extract        []interval
	extracted      int64
	extractedExact bool
}

func (r *Reducer) layerFigures(l *layer, joined bool) figure {
	f := figure{Layer: Layer{ID: l.id, State: l.state, Size: l.knownSize(), Position: l.position}, extractedExact: true}
	if l.state == Present {
		return f
	}
	n, exact := l.fetched()
	f.Joined = joined && l.told
	if !joined {
		f.Fetched, f.Unknown = n, !exact
	}
	f.Retries, f.RetryWait = len(l.retry), holdfast.Millis(sum(l.retry))
	f.DownloadTime = holdfast.Millis(sum(l.download))
	if len(l.download) > 0 {
		first, last := l.download[0], l.download[len(l.download)-1]
		f.Download = Span{holdfast.Millis(first.from), holdfast.Millis(last.to)}
		f.Queued = holdfast.Millis(max(first.from-l.announced, 0))
	}
	if l.state != Extracting && l.state != Complete {
		return f
	}
	extract := l.extract
	if !l.extracting {
		extract = r.inferred(l)
		f.Inferred = !l.exact
	}
	f.Extract = Span{holdfast.Millis(extract.from), holdfast.Millis(extract.to)}
	f.Waited = holdfast.Millis(max(extract.from-l.downloaded, 0))
	f.extract = []interval{extract}
	f.extracted, f.extractedExact = l.extracted()
	return f
}

// inferred returns the extraction of a layer without an "Extracting": it began
// when its bytes were present and the layer extracted before it was done.
func (r *Reducer) inferred(l *layer) interval {
	from := l.downloaded
	for _, other := range r.layers {
		if other.id != l.id && other.state == Complete && other.finished <= l.finished {
			from = max(from, other.finished)
		}
	}
	if r.polled(l) {
		// At the last poll no extraction of the layer was running.
		from = max(from, l.finished-poll)
	}
	return interval{from, l.finished}
}
