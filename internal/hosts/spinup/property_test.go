package spinup_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// statuses are the statuses of an engine, and some unknown ones.
var statuses = []string{
	"Pulling fs layer", "Waiting", "Downloading", "Retrying in 5 seconds", "Retrying in 1 second",
	"Verifying Checksum", "Download complete", "Extracting", "Pull complete", "Already exists", "Pulling from a/b", "", "Error",
	"Digest: sha256:abc", "Status: Downloaded newer image for a", "Status: Image is up to date for a",
}

// check checks the invariants of the figures of any stream.
func check(p spinup.Pull, o spinup.Options) error {
	took := time.Duration(p.Took)
	within := func(name string, d int64, most time.Duration) error {
		if d < 0 || time.Duration(d) > most {
			return fmt.Errorf("%s is %v of %v", name, time.Duration(d), most)
		}
		return nil
	}
	var errs []error
	var fetched int64
	for _, l := range p.Layers {
		errs = append(errs,
			within(l.ID+" download", int64(l.DownloadTime), took), within(l.ID+" retry", int64(l.RetryWait), took),
			within(l.ID+" queued", int64(l.Queued), took), within(l.ID+" waited", int64(l.Waited), took),
			within(l.ID+" download's end", int64(l.Download.To), took), within(l.ID+" extract's end", int64(l.Extract.To), took),
			within(l.ID+" download's begin", int64(l.Download.From), time.Duration(l.Download.To)),
			within(l.ID+" extract's begin", int64(l.Extract.From), time.Duration(l.Extract.To)))
		if l.Fetched < 0 || l.Size < 0 || l.Size > 0 && l.Fetched > l.Size {
			errs = append(errs, fmt.Errorf("%s: %d bytes of %d", l.ID, l.Fetched, l.Size))
		}
		if size := o.Sizes[l.ID]; size > 0 && l.Size != size {
			errs = append(errs, fmt.Errorf("%s: size %d, the manifest says %d", l.ID, l.Size, size))
		}
		if l.Joined && l.Fetched > 0 {
			errs = append(errs, fmt.Errorf("%s is joined and has %d bytes", l.ID, l.Fetched))
		}
		fetched += l.Fetched
	}
	for name, t := range map[string]spinup.Transfer{"download": p.Download, "extract": p.Extract} {
		errs = append(errs, within(name, int64(t.Wall), took), within(name+" in sum", int64(t.Wall), time.Duration(t.Sum)))
		if t.Bytes < 0 || t.Rate < 0 || math.IsNaN(t.Rate) || math.IsInf(t.Rate, 0) {
			errs = append(errs, fmt.Errorf("%s: %+v", name, t))
		}
		if t.Rate > 0 && (!t.Exact || p.Joined) {
			errs = append(errs, fmt.Errorf("%s has a rate that cannot be known: %+v", name, t))
		}
	}
	if fetched != p.Download.Bytes {
		errs = append(errs, fmt.Errorf("layers have %d bytes, the pull %d", fetched, p.Download.Bytes))
	}
	if p.Cached && (!p.Done || p.Download.Bytes > 0) {
		errs = append(errs, fmt.Errorf("cached: %+v", p))
	}
	errs = append(errs, within("resolve", int64(p.Resolve), took), within("retry", int64(p.RetryWait), took))
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// anyStream draws a stream that no engine would send.
func anyStream(t *rapid.T) []engine.PullEvent {
	at := begun
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) engine.PullEvent {
		at = at.Add(time.Duration(rapid.Int64Range(-int64(time.Second), int64(3*time.Second)).Draw(t, "later")))
		return engine.PullEvent{
			Time:    at,
			Layer:   rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "layer"),
			Status:  rapid.SampledFrom(statuses).Draw(t, "status"),
			Current: rapid.OneOf(rapid.Int64Range(0, 1<<20), rapid.Int64()).Draw(t, "current"),
			Total:   rapid.OneOf(rapid.Int64Range(0, 1<<20), rapid.Int64()).Draw(t, "total"),
			Units:   rapid.SampledFrom([]string{"", "", "s"}).Draw(t, "units"),
		}
	}), 0, 60).Draw(t, "events")
}

func TestFiguresOfAnyStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := spinup.Options{Begun: begun, ImageStore: rapid.SampledFrom([]string{engine.GraphDriver, engine.ContainerdStore}).Draw(t, "store")}
		if rapid.Bool().Draw(t, "manifest") {
			o.Sizes = map[string]int64{"a": 1 << 19, "b": 77}
		}
		r := spinup.NewReducer(o)
		for _, ev := range anyStream(t) {
			r.Add(ev)
			if err := check(r.At(ev.Time), o); err != nil {
				t.Fatalf("while it goes on: %v", err)
			}
		}
		p, _ := r.Finish(begun.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "end"))), nil)
		if err := check(p, o); err != nil {
			t.Fatal(err)
		}
	})
}

// story is the actual course of a layer, from which an engine makes lines.
type story struct {
	id         string
	size       int64
	begin, end time.Duration // of its download
	cutAt      int64         // 0: not cut
	cut, again time.Duration
	extracted  time.Duration // begin of its extraction
	done       time.Duration
}

// tell makes the lines of a story, without some that the engine loses.
func (s story) tell(t *rapid.T) []engine.PullEvent {
	at := func(d time.Duration, status string, current, total int64) engine.PullEvent {
		return engine.PullEvent{Time: begun.Add(d), Layer: s.id, Status: status, Current: current, Total: total}
	}
	maybe := func(list []engine.PullEvent, ev engine.PullEvent) []engine.PullEvent {
		if rapid.Bool().Draw(t, "kept") {
			return append(list, ev)
		}
		return list
	}
	lines := []engine.PullEvent{at(0, "Pulling fs layer", 0, 0), at(s.begin, "Downloading", min(s.size/200, 512<<10), s.size)}
	total := s.size
	if s.cutAt > 0 {
		lines = maybe(lines, at((s.begin+s.cut)/2, "Downloading", s.cutAt/2, s.size))
		lines = append(lines, at(s.cut, "Retrying in 5 seconds", 0, 0), at((s.cut+s.again)/2, "Retrying in 2 seconds", 0, 0))
		total = s.size - s.cutAt
		lines = append(lines, at(s.again, "Downloading", min(total/200, 512<<10), total))
	}
	lines = maybe(lines, at(s.end-1, "Downloading", total/2, total))
	if rapid.Bool().Draw(t, "verified") {
		lines = maybe(append(lines, at(s.end, "Verifying Checksum", 0, 0)), at(s.end, "Download complete", 0, 0))
	} else {
		lines = append(lines, at(s.end, "Download complete", 0, 0))
	}
	lines = append(lines, at(s.extracted, "Extracting", s.size/100, s.size))
	lines = maybe(lines, at((s.extracted+s.done)/2, "Extracting", s.size/2, s.size))
	return append(lines, at(s.done, "Pull complete", 0, 0))
}

func anyStories(t *rapid.T) []story {
	var out []story
	var below time.Duration
	moment := func(from time.Duration, what string) time.Duration {
		return from + time.Duration(rapid.Int64Range(2, 2000).Draw(t, what))*time.Millisecond
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "layers") {
		s := story{id: fmt.Sprintf("layer%d", i), size: rapid.Int64Range(1000, 1<<32).Draw(t, "size")}
		s.begin = moment(0, "begin")
		s.end = moment(s.begin, "download")
		if rapid.Bool().Draw(t, "cut") {
			s.cutAt = rapid.Int64Range(1, s.size-1).Draw(t, "cut at")
			s.cut = s.end
			s.again = moment(s.cut, "retry")
			s.end = moment(s.again, "rest")
		}
		s.extracted = moment(max(s.end, below), "wait")
		s.done = moment(s.extracted, "extract")
		below = s.done
		out = append(out, s)
	}
	return out
}

// TestFiguresAreTheStory makes streams from stories, with missing lines and with the lines
// of the layers interleaved in any order. The figures have to match the stories.
func TestFiguresAreTheStory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stories := anyStories(t)
		var lines []engine.PullEvent
		for _, s := range stories {
			lines = append(lines, s.tell(t)...)
		}
		// Lines of the same moment come in any order between layers.
		order := rapid.Permutation([]string{"layer0", "layer1", "layer2", "layer3", "layer4", "layer5"}).Draw(t, "order")
		slices.SortStableFunc(lines, func(a, b engine.PullEvent) int {
			return cmp.Or(a.Time.Compare(b.Time), slices.Index(order, a.Layer)-slices.Index(order, b.Layer))
		})
		r := spinup.NewReducer(spinup.Options{Begun: begun, ImageStore: engine.GraphDriver})
		for _, ev := range lines {
			r.Add(ev)
		}
		end := stories[len(stories)-1].done
		r.Add(engine.PullEvent{Time: begun.Add(end), Status: "Digest: sha256:d"})
		r.Add(engine.PullEvent{Time: begun.Add(end), Status: "Status: Downloaded newer image for x"})
		p, err := r.Finish(begun.Add(end), nil)
		if err != nil || !p.Done || p.Cached || p.Joined || !p.Download.Exact || !p.Extract.Exact {
			t.Fatalf("%+v, %v", p, err)
		}
		var bytes int64
		retries := 0
		downloading, extracting, waiting := map[int]bool{}, map[int]bool{}, map[int]bool{}
		mark := func(set map[int]bool, from, to time.Duration) {
			for ms := int(from.Milliseconds()); ms < int(to.Milliseconds()); ms++ {
				set[ms] = true
			}
		}
		for _, s := range stories {
			bytes += s.size
			mark(extracting, s.extracted, s.done)
			if s.cutAt > 0 {
				retries++
				mark(downloading, s.begin, s.cut)
				mark(waiting, s.cut, s.again)
				mark(downloading, s.again, s.end)
			} else {
				mark(downloading, s.begin, s.end)
			}
		}
		if p.Download.Bytes != bytes || p.Extract.Bytes != bytes || p.Retries != retries {
			t.Fatalf("download %d, extract %d of %d bytes; %d of %d retries", p.Download.Bytes, p.Extract.Bytes, bytes, p.Retries, retries)
		}
		for name, c := range map[string][2]int64{
			"download": {int64(p.Download.Wall), int64(len(downloading))},
			"extract":  {int64(p.Extract.Wall), int64(len(extracting))},
			"retry":    {int64(p.RetryWait), int64(len(waiting))},
		} {
			if got := time.Duration(c[0]); got != time.Duration(c[1])*time.Millisecond {
				t.Fatalf("%s took %v, it was %d ms", name, got, c[1])
			}
		}
	})
}

// FuzzReducer makes streams from bytes, seven for each event.
func FuzzReducer(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 0, 0, 0, 9, 1, 2, 200, 0, 255, 0, 9, 1, 8, 0, 0, 0, 0}, true)
	f.Add([]byte{5, 2, 2, 255, 255, 255, 255, 5, 2, 3, 0, 0, 0, 0, 5, 2, 2, 1, 0, 2, 0, 5, 2, 7, 1, 0, 2, 0}, false)
	f.Fuzz(func(t *testing.T, data []byte, containerd bool) {
		o := spinup.Options{Begun: begun, ImageStore: engine.GraphDriver, Sizes: map[string]int64{"b": 5000}}
		if containerd {
			o.ImageStore = engine.ContainerdStore
		}
		r := spinup.NewReducer(o)
		at := begun
		for ; len(data) >= 7; data = data[7:] {
			at = at.Add(time.Duration(int8(data[0])) * 10 * time.Millisecond)
			r.Add(engine.PullEvent{
				Time: at, Layer: []string{"", "a", "b", "c"}[data[1]%4], Status: statuses[int(data[2])%len(statuses)],
				Current: int64(int16(binary.BigEndian.Uint16(data[3:]))) << (data[1] / 4), Total: int64(int16(binary.BigEndian.Uint16(data[5:]))) << (data[1] / 4),
				Units: []string{"", "s"}[data[0]%2],
			})
		}
		if err := check(r.At(at), o); err != nil {
			t.Fatal(err)
		}
		p, _ := r.Finish(at, nil)
		if err := check(p, o); err != nil {
			t.Fatal(err)
		}
	})
}
