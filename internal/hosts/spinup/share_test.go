package spinup_test

import (
	"testing"
	"time"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// shared reduces the lines of a pull. Another pull counts some of the layers.
func shared(ids []string, end int, lines ...said) spinup.Pull {
	r := spinup.NewReducer(spinup.Options{Image: "a:1", Begun: begun, ImageStore: engine.GraphDriver})
	for _, id := range ids {
		r.Share(id)
	}
	for _, s := range lines {
		r.Add(engine.PullEvent{Time: begun.Add(time.Duration(s.ms) * time.Millisecond), Layer: s.layer, Status: s.status, Current: s.current, Total: s.total})
	}
	p, err := r.Finish(begun.Add(time.Duration(end)*time.Millisecond), nil)
	if err != nil {
		panic(err) // the lines end with whole
	}
	return p
}

// A layer that another measured pull fetches counts for that pull, and this pull has the
// wait. The other layers count for this pull.
func TestSharedLayersCountElsewhere(t *testing.T) {
	lines := []said{
		{0, "base", "Pulling fs layer", 0, 0}, {1, "own", "Pulling fs layer", 0, 0},
		{100, "base", "Downloading", 10, 5000}, {1000, "own", "Downloading", 10, 2 << 20}, {1500, "own", "Download complete", 0, 0},
		{3000, "base", "Download complete", 0, 0}, {3100, "base", "Extracting", 100, 5000}, {4000, "base", "Pull complete", 0, 0},
		{4000, "own", "Extracting", 100, 2 << 20}, {5000, "own", "Pull complete", 0, 0}, {5001, "", whole, 0, 0},
	}
	p := shared([]string{"base"}, 5001, lines...)
	if p.Joined || p.Cached || p.Download.Bytes != 2<<20 || p.Download.Wall != seconds(.5) || p.Download.Rate != 4 || !p.Download.Exact ||
		p.Extract.Bytes != 2<<20 || p.Extract.Wall != seconds(1) {
		t.Errorf("%+v", p)
	}
	if base, own := p.Layers[0], p.Layers[1]; !base.Joined || base.Fetched != 0 || own.Joined || own.Fetched != 2<<20 || own.Waited != seconds(2.5) {
		t.Errorf("%+v", p.Layers)
	}
	fetched, joined, present := counts(p)
	if fetched != 1 || joined != 1 || present != 0 {
		t.Errorf("%d fetched, %d joined, %d present", fetched, joined, present)
	}

	// With nothing of its own it has joined the other pull: it waited, and has
	// no rate to be judged by.
	p = shared([]string{"base", "own"}, 5001, lines...)
	if !p.Joined || p.Cached || p.Download.Bytes != 0 || p.Download.Rate != 0 || p.Download.Wall <= 0 {
		t.Errorf("%+v", p)
	}
	if v := spinup.DefaultRules().Judge(spinup.Record{Pull: &p}); len(v) > 0 {
		t.Errorf("it is judged: %+v", v)
	}
}
