package docker

import (
	"context"
	"strings"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/platforms"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"holdfast/internal/platform/engine"
)

// How often a pull looks at the downloads in containerd, which bounds the error of a
// download's end, and how long all questions to containerd about one pull may take.
const (
	ingestEvery = 20 * time.Millisecond
	storeLimit  = 5 * time.Second
)

// resumedAfter is the time without a byte after which a download that was there before the
// pull is broken, not another client's.
const resumedAfter = 10 * time.Second

// layerRef begins the references of the downloads of layers (containerd,
// core/remotes/handlers.go MakeRefKey).
const layerRef = "layer-"

// unpackKey begins the keys of snapshots into which a layer is extracted. The rest is a
// random word, a space and the chain of layers.
const unpackKey = snapshots.UnpackKeyPrefix + "-"

// ingest is a download as containerd shows it while it lasts.
type ingest struct {
	started  time.Time // zero: it goes on with an earlier one
	received time.Time // the last byte was written; zero if that was not seen
	from     int64     // bytes of the earlier one
}

// ingests observes the downloads in an engine's containerd during one pull. The engine's
// own lines come every 100 ms and leave out what is shorter. In containerd a download has
// the time of its request and of its last byte; a layer that is there has the time at which
// the store had it, and its snapshot that of the extraction's end (containerd,
// plugins/content/local/store.go status, core/metadata/content.go and snapshot.go).
type ingests struct {
	cancel context.CancelFunc
	ended  chan struct{}
	// The goroutine of watch writes them before ended.
	store *store               // nil: there are no times
	first time.Time            // look that succeeded
	lost  bool                 // a look failed
	empty map[string]time.Time // when the snapshot for a chain of layers was made
	seen  map[string]*ingest   // by digest
}

// watchIngests begins to observe. The caller calls close.
func (e *Engine) watchIngests(ctx context.Context, begun time.Time) *ingests {
	ctx, cancel := context.WithCancel(ctx)
	i := &ingests{cancel: cancel, ended: make(chan struct{}), seen: map[string]*ingest{}, empty: map[string]time.Time{}}
	go func() {
		defer close(i.ended)
		opening, done := context.WithTimeout(ctx, storeLimit)
		defer done()
		if i.store, _ = e.openStore(opening); i.store != nil {
			i.watch(ctx, begun)
		}
	}()
	return i
}

// watch looks at the downloads until ctx is done, or containerd does not answer.
func (i *ingests) watch(ctx context.Context, begun time.Time) {
	made, errs := i.store.EventService().Subscribe(ctx, `topic=="/snapshot/prepare",namespace==`+i.store.namespace)
	defer func() {
		for range errs { // closed when the stream's goroutine ends
		}
	}()
	tick := time.NewTicker(ingestEvery)
	defer tick.Stop()
	for i.look(ctx, begun) {
		for waiting := true; waiting; {
			select {
			case ev := <-made:
				i.add(ev)
			case <-tick.C:
				waiting = false
			case <-ctx.Done():
				return
			}
		}
	}
	i.lost = ctx.Err() == nil
	i.cancel()
}

// add takes the event of a snapshot that was made.
func (i *ingests) add(ev *events.Envelope) {
	what, err := typeurl.UnmarshalAny(ev.Event)
	if made, ok := what.(*apievents.SnapshotPrepare); ok && err == nil && strings.HasPrefix(made.Key, unpackKey) {
		_, chain, _ := strings.Cut(made.Key, " ")
		i.empty[chain] = ev.Timestamp
	}
}

func (i *ingests) look(ctx context.Context, begun time.Time) bool {
	asking, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	all, err := i.store.ContentStore().ListStatuses(asking)
	if err != nil {
		return false
	}
	if i.first.IsZero() {
		i.first = time.Now()
	}
	for _, st := range all {
		name, ok := strings.CutPrefix(st.Ref, layerRef)
		if !ok {
			continue
		}
		l := i.seen[name]
		if l == nil {
			l = &ingest{started: st.StartedAt}
			if begun.Sub(st.UpdatedAt) > resumedAfter {
				l.started, l.from = time.Time{}, st.Offset
			}
			i.seen[name] = l
		}
		if st.Total > 0 && st.Offset >= st.Total {
			l.received = st.UpdatedAt
		}
	}
	return true
}

// close ends the observation.
func (i *ingests) close() {
	i.cancel()
	<-i.ended
	if i.store != nil {
		_ = i.store.Close()
	}
}

// times ends the observation and returns the times of the layers of the image with the
// given digest, as events. It returns none if containerd does not have them.
func (i *ingests) times(ctx context.Context, target, platform string) []engine.PullEvent {
	i.cancel()
	<-i.ended
	if i.first.IsZero() || i.lost {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	matcher := platforms.Default()
	if p, err := engine.ParsePlatform(platform); err == nil && p != nil {
		matcher = platforms.Only(*p)
	}
	named, err := i.store.ImageService().List(ctx, "target.digest=="+target)
	if err != nil || len(named) == 0 {
		return nil
	}
	content := i.store.ContentStore()
	manifest, err := images.Manifest(ctx, content, named[0].Target, matcher)
	if err != nil {
		return nil
	}
	diffs, err := images.RootFS(ctx, content, manifest.Config)
	if err != nil || len(diffs) != len(manifest.Layers) {
		return nil
	}
	var out []engine.PullEvent
	for n, chain := range identity.ChainIDs(diffs) {
		layer := manifest.Layers[n]
		t, ok := i.timesOf(ctx, layer, chain.String())
		if !ok {
			return nil
		}
		out = append(out, engine.PullEvent{Time: time.Now(), Layer: layer.Digest.Encoded()[:12], Times: &t})
	}
	return out
}

// timesOf returns the times of a layer and its snapshot. A layer that no look found was
// fetched between two looks.
func (i *ingests) timesOf(ctx context.Context, layer ocispec.Descriptor, chain string) (engine.LayerTimes, bool) {
	info, err := i.store.ContentStore().Info(ctx, layer.Digest)
	if err != nil {
		return engine.LayerTimes{}, false
	}
	snapshot, err := i.store.SnapshotService(i.store.snapshotter).Stat(ctx, chain)
	if err != nil {
		return engine.LayerTimes{}, false
	}
	t := engine.LayerTimes{Size: layer.Size, Received: info.CreatedAt, Stored: info.CreatedAt, Empty: i.empty[chain], Extracted: snapshot.Created}
	if info.CreatedAt.After(i.first) {
		t.Requested = info.CreatedAt.Add(-ingestEvery)
	}
	if l := i.seen[layer.Digest.String()]; l != nil {
		t.Requested, t.From = l.started, l.from
		if !l.received.IsZero() {
			t.Received = l.received
		}
	}
	return t, true
}
