package spinup_test

import (
	"errors"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// said is one line of a stream: its time in ms, its layer and its status.
type said struct {
	ms             int
	layer, status  string
	current, total int64
}

func seconds(n float64) holdfast.Millis { return holdfast.Millis(n * float64(time.Second)) }

const mib = 1 << 20

const whole = "Status: Downloaded newer image for a:1"

// hear reduces lines. The stream ends after end ms with err.
func hear(store string, end int, err error, lines ...said) spinup.Pull {
	r := spinup.NewReducer(spinup.Options{Image: "a:1", Begun: begun, ImageStore: store})
	for _, s := range lines {
		r.Add(engine.PullEvent{Time: begun.Add(time.Duration(s.ms) * time.Millisecond), Layer: s.layer, Status: s.status, Current: s.current, Total: s.total})
	}
	p, _ := r.Finish(begun.Add(time.Duration(end)*time.Millisecond), err)
	return p
}

var errGone = errors.New("gone")

func TestPartsOfFailedPullsAreLowerBounds(t *testing.T) {
	for name, c := range map[string]struct {
		pull spinup.Pull
		want int64
	}{
		"in the middle": {hear("", 900, errGone,
			said{0, "a", "Pulling fs layer", 0, 0}, said{100, "a", "Downloading", 10, 1000}, said{200, "a", "Downloading", 400, 1000}), 400},
		"after a resume": {hear("", 9000, errGone,
			said{0, "a", "Pulling fs layer", 0, 0}, said{100, "a", "Downloading", 10, 1000}, said{200, "a", "Downloading", 390, 1000},
			said{300, "a", "Retrying in 5 seconds", 0, 0},
			said{5300, "a", "Downloading", 5, 600}, said{5400, "a", "Downloading", 100, 600}), 500},
		"with the bar filled up at the end": {hear("", 900, errGone,
			said{0, "a", "Pulling fs layer", 0, 0}, said{100, "a", "Downloading", 300, 1000}, said{200, "a", "Downloading", 1000, 1000}), 300},
		"with the bar filled up before a retry": {hear("", 900, errGone,
			said{0, "a", "Pulling fs layer", 0, 0}, said{100, "a", "Downloading", 300, 1000}, said{200, "a", "Downloading", 1000, 1000},
			said{210, "a", "Retrying in 5 seconds", 0, 0}), 300},
		"before the first byte": {hear("", 900, errGone,
			said{0, "a", "Pulling fs layer", 0, 0}, said{100, "a", "Retrying in 5 seconds", 0, 0}), 0},
	} {
		if p := c.pull; p.Download.Bytes != c.want || p.Download.Exact || p.Download.Rate != 0 || p.Done {
			t.Errorf("%s: %+v", name, p.Download)
		}
	}
}

func TestSignsOfAnotherPull(t *testing.T) {
	const big = 10 << 20
	rest := []said{
		{2000, "a", "Download complete", 0, 0}, {2100, "a", "Extracting", 5, big}, {3000, "a", "Pull complete", 0, 0},
		{3001, "", "Digest: sha256:a", 0, 0}, {3002, "", whole, 0, 0},
	}
	for name, c := range map[string]struct {
		store  string
		first  said
		joined bool
		bytes  int64
	}{
		"begins like one's own":     {"", said{20, "a", "Downloading", 100_000, big}, false, big},
		"a part is there at once":   {"", said{1, "a", "Downloading", 400_000, big}, true, 0},
		"a part is there soon":      {"", said{300, "a", "Downloading", 4 << 20, big}, true, 0},
		"a part came in time":       {"", said{1300, "a", "Downloading", 4 << 20, big}, false, big},
		"a full bar at once":        {"", said{1, "a", "Downloading", big, big}, true, 0},
		"a full bar in time":        {"", said{300, "a", "Downloading", big, big}, false, big},
		"all is there at once":      {"", said{1, "a", "Download complete", 0, 0}, true, 0},
		"all came in time":          {"", said{300, "a", "Download complete", 0, 0}, false, big},
		"it is extracted at once":   {"", said{1, "a", "Extracting", 5, big}, true, 0},
		"another store, a big part": {engine.ContainerdStore, said{1, "a", "Downloading", 400_000, big}, false, big},
	} {
		p := hear(c.store, 3100, nil, append([]said{{0, "a", "Pulling fs layer", 0, 0}, c.first}, rest...)...)
		if p.Joined != c.joined || p.Layers[0].Joined != c.joined || p.Download.Bytes != c.bytes {
			t.Errorf("%s: joined %v, %+v", name, p.Joined, p.Download)
		}
		if p.Joined && (p.Download.Rate != 0 || p.Extract.Rate != 0) {
			t.Errorf("%s: rates of another pull: %+v %+v", name, p.Download, p.Extract)
		}
	}
	// A layer of a few bytes arrives before a join can be detected.
	p := hear("", 200, nil, said{0, "a", "Pulling fs layer", 0, 0}, said{1, "a", "Download complete", 0, 0},
		said{2, "a", "Extracting", 900, 900}, said{9, "a", "Pull complete", 0, 0}, said{10, "", whole, 0, 0})
	if p.Joined || p.Download.Bytes != 900 || !p.Download.Exact {
		t.Errorf("a small layer: %+v", p)
	}
	p = hear("", 200, nil, said{0, "a", "Pulling fs layer", 0, 0}, said{1, "a", "Pull complete", 0, 0}, said{10, "", whole, 0, 0})
	if p.Download.Exact || p.Extract.Exact || !p.Layers[0].Unknown || p.Download.Rate != 0 {
		t.Errorf("a layer of unknown size: %+v", p)
	}
}

func TestLinesThatAreLost(t *testing.T) {
	p := hear("", 9000, nil,
		said{0, "a", "Pulling fs layer", 0, 0}, said{0, "b", "Pulling fs layer", 0, 0}, said{0, "c", "Pulling fs layer", 0, 0},
		said{100, "a", "Downloading", 1, 100}, said{100, "b", "Downloading", 1, 100}, said{100, "c", "Downloading", 1, 100},
		said{900, "b", "Verifying Checksum", 0, 0}, said{900, "c", "Download complete", 0, 0},
		said{1000, "a", "Extracting", 1, 100}, // without "Download complete"
		said{3000, "b", "Extracting", 1, 100}, // and a is done, without "Pull complete"
		said{4000, "b", "Pull complete", 0, 0},
		said{6000, "c", "Pull complete", 0, 0}, // without "Extracting"
		said{6000, "", "Digest: sha256:a", 0, 0}, said{6000, "", whole, 0, 0})
	if p.Download.Wall != seconds(.9) || p.Download.Bytes != 300 || p.Extract.Wall != seconds(5) || p.Extract.Bytes != 300 || !p.Extract.Exact {
		t.Errorf("%+v %+v", p.Download, p.Extract)
	}
	for i, want := range []spinup.Span{{From: seconds(1), To: seconds(3)}, {From: seconds(3), To: seconds(4)}, {From: seconds(4), To: seconds(6)}} {
		if l := p.Layers[i]; l.Extract != want || l.State != spinup.Complete || l.Inferred != (i == 2) {
			t.Errorf("%+v", l)
		}
	}
	if got := p.Layers[1].Waited; got != seconds(2.1) {
		t.Errorf("b waited %v for a", got)
	}
	// The last layer's "Pull complete" is lost.
	p = hear("", 9000, nil, said{0, "a", "Pulling fs layer", 0, 0}, said{100, "a", "Downloading", 1, 100}, said{1000, "a", "Extracting", 1, 100},
		said{2000, "", "Digest: sha256:a", 0, 0}, said{2100, "", whole, 0, 0})
	if p.Extract.Wall != seconds(1) || !p.Extract.Exact || p.Layers[0].State != spinup.Complete {
		t.Errorf("%+v", p)
	}
}

func TestRetriesAreTheirWait(t *testing.T) {
	p := hear("", 20_000, nil,
		said{0, "a", "Pulling fs layer", 0, 0}, said{0, "b", "Pulling fs layer", 0, 0},
		said{1000, "a", "Downloading", 1, 100}, said{2000, "a", "Retrying in 5 seconds", 0, 0}, said{3000, "a", "Retrying in 4 seconds", 0, 0},
		said{6000, "b", "Retrying in 5 seconds", 0, 0},
		said{7000, "a", "Download complete", 0, 0}, // the remaining bytes came before the line
		said{11_000, "b", "Downloading", 1, 50}, said{12_000, "b", "Download complete", 0, 0},
		said{13_000, "", whole, 0, 0})
	a, b := p.Layers[0], p.Layers[1]
	if p.Retries != 2 || p.RetryWait != seconds(9) || a.RetryWait != seconds(5) || b.RetryWait != seconds(5) || p.Download.Wall != seconds(2) {
		t.Errorf("%d retries in %v (%v and %v), download %v", p.Retries, p.RetryWait, a.RetryWait, b.RetryWait, p.Download.Wall)
	}
	if a.DownloadTime != seconds(1) || p.Download.Bytes != 150 {
		t.Errorf("%+v", a)
	}
}

func TestContainerdStoreTellsSeconds(t *testing.T) {
	r := spinup.NewReducer(spinup.Options{Begun: begun, ImageStore: engine.ContainerdStore, Sizes: map[string]int64{"sha256:aaaaaaaaaaaa00": 700, "bbbbbbbbbbbb": 5000}})
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	for _, ev := range []engine.PullEvent{
		{Time: at(0), Layer: "aaaaaaaaaaaa", Status: "Pulling fs layer"},
		{Time: at(0), Layer: "bbbbbbbbbbbb", Status: "Already exists"},
		{Time: at(100), Layer: "aaaaaaaaaaaa", Status: "Download complete"},
		{Time: at(200), Layer: "aaaaaaaaaaaa", Status: "Extracting", Current: 9_000_000, Units: "s"},
		{Time: at(2200), Layer: "aaaaaaaaaaaa", Status: "Pull complete"},
		{Time: at(2200), Layer: "bbbbbbbbbbbb", Status: "Extracting", Current: 1, Units: "s"}, // it was present, but not extracted
		{Time: at(3200), Layer: "bbbbbbbbbbbb", Status: "Pull complete"},
		{Time: at(3300), Status: whole},
	} {
		r.Add(ev)
	}
	p, err := r.Finish(at(3300), nil)
	if err != nil || p.Download.Bytes != 700 || !p.Download.Exact || p.Extract.Bytes != 5700 || p.Extract.Wall != seconds(3) || p.Cached || p.Joined {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestStoreHasTheTimes: the lines come in the same poll, and the engine's containerd has the
// times.
func TestStoreHasTheTimes(t *testing.T) {
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	lines := []engine.PullEvent{
		{Time: at(100), Layer: "a", Status: "Pulling fs layer"},
		{Time: at(100), Layer: "b", Status: "Pulling fs layer"},
		{Time: at(500), Layer: "a", Status: "Download complete"},
		{Time: at(500), Layer: "b", Status: "Download complete"},
		{Time: at(502), Layer: "a", Status: "Pull complete"},
		{Time: at(502), Layer: "b", Status: "Pull complete"},
		{Time: at(503), Status: whole},
	}
	times := func(requested, received, stored, extracted int) *engine.LayerTimes {
		t := &engine.LayerTimes{Size: mib, Received: at(received), Stored: at(stored), Extracted: at(extracted)}
		if requested != 0 {
			t.Requested = at(requested)
		}
		return t
	}
	late := times(120, 290, 300, 430)
	late.Empty = at(380)
	resumed := times(0, 400, 420, 450)
	resumed.From = mib / 4
	for name, c := range map[string]struct {
		a, b              *engine.LayerTimes
		download, extract holdfast.Millis
		bytes             int64
		joined            bool
	}{
		"none":             {nil, nil, 0, 0, 2 * mib, false},
		"exact":            {times(110, 210, 230, 330), times(120, 290, 300, 430), seconds(.18), seconds(.2), 2 * mib, false},
		"the second waits": {times(110, 210, 230, 240), times(220, 290, 300, 430), seconds(.17), seconds(.14), 2 * mib, false},
		"made late":        {times(110, 210, 230, 330), late, seconds(.18), seconds(.15), 2 * mib, false},
		"another's":        {times(-50, 210, 230, 330), times(120, 290, 300, 430), seconds(.19), seconds(.2), 0, true},
		"goes on":          {times(110, 210, 230, 330), resumed, seconds(.1), seconds(.13), 2*mib - mib/4, false},
		"a clock's step":   {times(110, 210, 230, 330), times(120, 290, 300, 90_000), seconds(.18), seconds(.272), 2 * mib, false},
	} {
		r := spinup.NewReducer(spinup.Options{Begun: begun, ImageStore: engine.ContainerdStore, Sizes: map[string]int64{"a": mib, "b": mib}})
		for _, ev := range lines {
			r.Add(ev)
		}
		r.Add(engine.PullEvent{Time: at(505), Layer: "a", Times: c.a})
		r.Add(engine.PullEvent{Time: at(505), Layer: "b", Times: c.b})
		p, err := r.Finish(at(510), nil)
		if err != nil || p.Download.Wall != c.download || p.Extract.Wall != c.extract || p.Download.Bytes != c.bytes || p.Joined != c.joined {
			t.Errorf("%s: %v, joined %v, download %+v, extract %+v", name, err, p.Joined, p.Download, p.Extract)
		}
		if exact := c.a != nil && !c.joined; (p.Download.Rate > 0) != exact || (p.Extract.Rate > 0) != exact {
			t.Errorf("%s: rates %v and %v", name, p.Download.Rate, p.Extract.Rate)
		}
	}
}

func TestWhileItGoesOn(t *testing.T) {
	r := spinup.NewReducer(spinup.Options{Begun: begun})
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	for _, ev := range []engine.PullEvent{
		{Time: at(100), Layer: "a", Status: "Pulling fs layer"},
		{Time: at(100), Layer: "b", Status: "Pulling fs layer"},
		{Time: at(100), Layer: "c", Status: "Already exists"},
		{Time: at(110), Layer: "b", Status: "Waiting"},
		{Time: at(200), Layer: "a", Status: "Downloading", Current: 10, Total: 1000},
		{Time: at(400), Layer: "a", Status: "Downloading", Current: 250, Total: 1000},
	} {
		r.Add(ev)
	}
	r.Know(map[string]int64{"b": 70})
	p := r.At(at(500))
	a, b, c := p.Layers[0], p.Layers[1], p.Layers[2]
	if a.State != spinup.Downloading || a.Position != 250 || a.Size != 1000 || b.State != spinup.Waiting || b.Size != 70 || c.State != spinup.Present {
		t.Errorf("%+v", p.Layers)
	}
	if p.Download.Wall != seconds(.3) || p.Resolve != seconds(.1) || p.Took != seconds(.5) || p.Done {
		t.Errorf("%+v", p)
	}
	r.Add(engine.PullEvent{Time: at(600), Layer: "a", Status: "Extracting", Current: 80, Total: 1000})
	if p := r.At(at(900)); p.Layers[0].State != spinup.Extracting || p.Layers[0].Position != 80 || p.Extract.Wall != seconds(.3) || p.Download.Wall != seconds(.4) {
		t.Errorf("%+v", p)
	}
	// At does not change the result.
	if p := r.At(at(700)); p.Extract.Wall != seconds(.1) {
		t.Errorf("%+v", p.Extract)
	}
}

// TestContainerdStoreBeginsLate: the engine reports a layer only after its first mebibyte.
// The begin is inferred from the rate after that.
func TestContainerdStoreBeginsLate(t *testing.T) {
	const mib = 1 << 20
	lines := func(announced, first, count int) []said {
		return []said{
			{announced, "a", "Pulling fs layer", 0, 0},
			{first, "a", "Downloading", int64(count) * mib, 8 * mib}, {first + 1000, "a", "Downloading", int64(count+2) * mib, 8 * mib},
			{first + 1000*(8-count)/2, "a", "Download complete", 0, 0},
			{9000, "a", "Pull complete", 0, 0}, {9001, "", whole, 0, 0},
		}
	}
	for name, c := range map[string]struct {
		lines  []said
		begin  float64
		joined bool
	}{
		"half a second before": {lines(0, 900, 1), .4, false},
		"not before announced": {lines(700, 900, 1), .7, false},
		"a burst":              {lines(0, 900, 4), 0, false},
		"another pull's":       {lines(850, 900, 4), .85, true},
	} {
		p := hear(engine.ContainerdStore, 9100, nil, c.lines...)
		if p.Layers[0].Download.From != seconds(c.begin) || p.Joined != c.joined {
			t.Errorf("%s: from %v, joined %v", name, p.Layers[0].Download.From, p.Joined)
		}
	}
}
