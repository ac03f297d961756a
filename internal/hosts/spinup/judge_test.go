package spinup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// pulled returns the record of a pull of mib MiB in d, at rates in MiB/s.
func pulled(took time.Duration, download, extract float64) Record {
	return Record{Kind: ForPull, Outcome: OK, Pull: &Pull{
		Done: true, Took: holdfast.Millis(took),
		Download: Transfer{Bytes: 100 * mib, Wall: holdfast.Millis(took), Rate: download, Exact: true},
		Extract:  Transfer{Bytes: 100 * mib, Wall: holdfast.Millis(took), Rate: extract, Exact: true},
	}}
}

func timed(create, start, ready time.Duration) Record {
	return Record{Kind: ForRun, Outcome: OK, Times: map[Phase]holdfast.Millis{
		Create: holdfast.Millis(create), Start: holdfast.Millis(start), Ready: holdfast.Millis(ready),
	}}
}

func TestSlowAsPublished(t *testing.T) {
	failed := timed(20*time.Second, time.Second, time.Second)
	failed.Outcome, failed.Failed = Failed, Create
	broken := pulled(10*time.Second, 1, 1)
	broken.Pull.Done = false
	for name, c := range map[string]struct {
		rec          Record
		judged, slow []Phase
	}{
		"fast":                  {pulled(10*time.Second, 25, 12), []Phase{Download, Extract}, nil},
		"at the limit":          {pulled(5*time.Second, 20, 10), []Phase{Download, Extract}, nil},
		"slow download":         {pulled(10*time.Second, 15, 12), []Phase{Download, Extract}, []Phase{Download}},
		"slow extract":          {pulled(10*time.Second, 25, 9.9), []Phase{Download, Extract}, []Phase{Extract}},
		"too short to say":      {pulled(4900*time.Millisecond, 1, 1), nil, nil},
		"rates are not known":   {pulled(10*time.Second, 0, 0), nil, nil},
		"not finished":          {broken, nil, nil},
		"quick container":       {timed(3*time.Second, time.Second, 2*time.Second), []Phase{Create, Start, Ready}, nil},
		"slow container":        {timed(10001*time.Millisecond, 6*time.Second, 11*time.Second), []Phase{Create, Start, Ready}, []Phase{Create, Start, Ready}},
		"at the limit as well":  {timed(10*time.Second, 5*time.Second, 10*time.Second), []Phase{Create, Start, Ready}, nil},
		"failed in that phase":  {failed, []Phase{Start, Ready}, nil},
		"nothing that is timed": {Record{}, nil, nil},
	} {
		var judged []Phase
		for _, v := range DefaultRules().Judge(c.rec) {
			judged = append(judged, v.Phase)
		}
		if slow := DefaultRules().Slow(c.rec); !slices.Equal(judged, c.judged) || !slices.Equal(slow, c.slow) {
			t.Errorf("%s: judged %v, slow %v", name, judged, slow)
		}
	}
	if got := (Rules{}).Judge(timed(time.Hour, time.Hour, time.Hour)); len(got) > 0 {
		t.Errorf("rules that are off say %v", got)
	}
	for _, bad := range []Rules{{Download: -1}, {Extract: math.NaN()}, {MinPull: -1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestLinesAsPublished(t *testing.T) {
	// The source's own figures.
	published := Pull{Done: true,
		Download: Transfer{Bytes: 130306540, Wall: holdfast.Millis(1283300 * time.Microsecond), Exact: true},
		Extract:  Transfer{Bytes: 130306540, Wall: holdfast.Millis(2806300 * time.Microsecond), Exact: true},
	}
	for _, tr := range []*Transfer{&published.Download, &published.Extract} {
		tr.Rate = rate(tr.Bytes, time.Duration(tr.Wall))
	}
	retried := published
	retried.Retries, retried.RetryWait = 1, holdfast.Millis(5*time.Second)
	unknown := published
	unknown.Download = Transfer{Bytes: 1 << 20, Wall: holdfast.Millis(time.Second)}
	unknown.Extract = Transfer{Wall: holdfast.Millis(time.Second)}
	unknown.Done = false
	for want, p := range map[string]Pull{
		"pull stats: download 124.3MiB in 1.283s (96.84MiB/s), extract 124.3MiB in 2.806s (44.28MiB/s)":                                 published,
		"pull stats: download 124.3MiB in 1.283s (96.84MiB/s), extract 124.3MiB in 2.806s (44.28MiB/s), 1 retry with 5.000s of waiting": retried,
		"pull stats: download at least 1MiB in 1.000s (rate unknown), extract of unknown size in 1.000s, not finished":                  unknown,
		"image was in the cache": {Done: true, Cached: true},
		"pull stats: joined another pull of the same layers, waited 1.000s for the download and 2.000s for the extraction": {
			Done: true, Joined: true, Download: Transfer{Wall: holdfast.Millis(time.Second)}, Extract: Transfer{Wall: holdfast.Millis(2 * time.Second)}},
		"pull stats: download nothing, extract 5KiB in a time too short to measure": {Done: true, Download: Transfer{Exact: true}, Extract: Transfer{Bytes: 5120, Exact: true}},
	} {
		if got := p.Line(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	r := timed(3201*time.Millisecond, 480*time.Millisecond, 1100*time.Millisecond)
	r.Pull = &Pull{Done: true, Cached: true}
	r.Image, r.Digest = "docker.io/cimg/go:1.16", "sha256:6621"
	want := []string{"image was in the cache", "time to create container: 3.201s", "time to start container: 0.480s", "time until container was ready: 1.100s", "using image cimg/go@sha256:6621"}
	if got := r.Lines(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestTimerTimesPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no space left on device")
		timer := NewTimer(ForSession, "image", Cohort{Host: "h"})
		timer.Job("alice")
		time.Sleep(time.Second)
		timer.Pulled(Pull{Done: true, Digest: "sha256:d", Download: Transfer{Wall: holdfast.Millis(600 * time.Millisecond)}, Extract: Transfer{Wall: holdfast.Millis(500 * time.Millisecond)}})
		if err := timer.Time(Create, func() error { time.Sleep(3 * time.Second); return nil }); err != nil {
			t.Error(err)
		}
		timer.Container("id", "name")
		if err := timer.Time(Start, func() error { time.Sleep(2 * time.Second); return broken }); err != broken {
			t.Error(err)
		}
		r := timer.End(fmt.Errorf("start: %w", broken))
		if r.Took != holdfast.Millis(6*time.Second) || r.Times[Create] != holdfast.Millis(3*time.Second) || r.Times[Start] != holdfast.Millis(2*time.Second) ||
			r.Times[Download] != holdfast.Millis(600*time.Millisecond) || r.Outcome != Failed || r.Cause != NoSpace || r.Failed != Start ||
			r.Digest != "sha256:d" || r.Job != "alice" || r.Container != "id" || r.ID != timer.record.ID {
			t.Errorf("%+v", r)
		}
	})
}

func TestTimerOfPulls(t *testing.T) {
	extracting := Pull{Layers: []Layer{{State: Downloading}, {State: Extracting}}}
	for name, c := range map[string]struct {
		pull    Pull
		err     error
		outcome Outcome
		in      Phase
	}{
		"cached":     {Pull{Done: true, Cached: true, Download: Transfer{Wall: 1}}, nil, OK, ""},
		"downloads":  {Pull{Layers: []Layer{{State: Downloading}}}, errors.New("x"), Failed, Download},
		"extracts":   {extracting, errors.New("x"), Failed, Extract},
		"called off": {extracting, fmt.Errorf("pull: %w", context.Canceled), Stopped, Extract},
		"too long":   {extracting, fmt.Errorf("pull: %w", context.DeadlineExceeded), Failed, Extract},
	} {
		timer := NewTimer(ForPull, "image", Cohort{})
		timer.Pulled(c.pull)
		if r := timer.End(c.err); r.Outcome != c.outcome || r.Failed != c.in || len(r.Times) > 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestCauses(t *testing.T) {
	for text, want := range map[string]Cause{
		"manifest for a:2 not found: manifest unknown: manifest unknown":                    NoImage,
		"pull access denied for a, repository does not exist or may require 'docker login'": Denied,
		"no matching manifest for linux/amd64 in the manifest list entries":                 NoPlatform,
		"write /var/lib/docker/tmp/GetImageBlob1: no space left on device":                  NoSpace,
		`Get "https://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused`:  Unreachable,
		"filesystem layer verification failed for digest sha256:1":                          Corrupt,
		"invalid reference format": BadName,
		"something else":           Other,
		// Names of images are not phrases of registries.
		"pull image acme/geofence:1: boom":                                                                    Other,
		"pull image acme/unauthorized:x509 (at layer 1, downloading): boom":                                   Other,
		`failed to resolve reference "r.example/acme/x509-eof:eof": boom`:                                     Other,
		`Get "https://r.example/v2/acme/geofence/manifests/1": EOF`:                                           Unreachable,
		`Get "https://r.example/v2/": tls: x509: certificate has expired`:                                     Unreachable,
		"failed to register layer: Error processing tar file(exit status 1): archive/tar: invalid tar header": Unreadable,
		`{"errors":[{"code":"UNAUTHORIZED","message":"no"}]} for acme/geofence:1`:                             Denied,
	} {
		err := errors.New(text)
		if got := CauseOf(err); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		if explained := CauseOf(err).Explain(err); !errors.Is(explained, err) || (holdfast.HintOf(explained) == "") != (want == Other) {
			t.Errorf("%q: hint %q", text, holdfast.HintOf(explained))
		}
	}
	for err, want := range map[error]Cause{
		nil: NoCause, context.Canceled: Canceled, ErrEndedEarly: CutShort, holdfast.ErrEngine: EngineDown, engine.ErrNoImage: NoImage,
	} {
		if got := CauseOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	kept := holdfast.WithHint(errors.New("no space left on device"), "mine")
	if NoCause.Explain(nil) != nil || holdfast.HintOf(CauseOf(kept).Explain(kept)) != "mine" {
		t.Error("a hint that was there is lost")
	}
}

func TestEndedEarlyIsNoSuccess(t *testing.T) {
	p, err := Reduce(Options{Begun: time.Now()}, func(yield func(engine.PullEvent, error) bool) {
		yield(engine.PullEvent{Time: time.Now(), Layer: "a", Status: "Pulling fs layer"}, nil)
	})
	if !errors.Is(err, ErrEndedEarly) || p.Done || p.Cached {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestSizesOfAManifest(t *testing.T) {
	got, err := Sizes([]byte(`{"schemaVersion":2,"config":{"size":9},"layers":[{"digest":"sha256:a","size":5},{"digest":"sha256:b","size":-1}]}`))
	if err != nil || len(got) != 1 || got["sha256:a"] != 5 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Sizes([]byte("<html>")); err == nil {
		t.Error("a page was taken for a manifest")
	}
}

func TestMetricsCountWhatWasRecorded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg, DefaultRules())
	m.Observe(pulled(10*time.Second, 15, 12))
	m.Observe(pulled(10*time.Second, 25, 12))
	cached := timed(11*time.Second, time.Second, time.Second)
	cached.Pull = &Pull{Done: true, Cached: true}
	m.Observe(cached)
	joined := pulled(10*time.Second, 0, 0)
	joined.Pull.Joined = true
	m.Observe(joined)
	failed := Record{Kind: ForPull, Outcome: Failed, Cause: NoSpace, Pull: &Pull{Retries: 2}}
	m.Observe(failed)
	for what, c := range map[string]struct{ got, want float64 }{
		"slow downloads":   {counted(t, m.slow.WithLabelValues("download", "pull")), 1},
		"judged downloads": {counted(t, m.judged.WithLabelValues("download", "pull")), 2},
		"slow creates":     {counted(t, m.slow.WithLabelValues("create", "run")), 1},
		"bytes":            {counted(t, m.bytes.WithLabelValues("download")), 200 * mib},
		"failures":         {counted(t, m.ended.WithLabelValues("pull", "failed", "no-space")), 1},
		"from the cache":   {counted(t, m.pulls.WithLabelValues("cache")), 1},
		"joined":           {counted(t, m.pulls.WithLabelValues("joined")), 1},
		"retries":          {counted(t, m.retries), 2},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	// A pedantic registry also checks names, labels and help.
	families, err := reg.Gather()
	if err != nil {
		t.Error(err)
	}
	series := 0
	for _, f := range families {
		series += len(f.Metric)
	}
	if series > 100 {
		t.Errorf("%d series of five spin-ups", series)
	}
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func TestUnpigzIsFound(t *testing.T) {
	dir := t.TempDir()
	if HasUnpigz(dir) {
		t.Error("found in an empty directory")
	}
	path := filepath.Join(dir, "unpigz")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if HasUnpigz(dir) {
		t.Error("a file that cannot be run was found")
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if !HasUnpigz(t.TempDir(), dir) {
		t.Error("not found")
	}
}

func TestCohortNamesTheEngine(t *testing.T) {
	c := NewCohort("h", engine.Info{Name: "docker", Version: "20.10.24", StorageDriver: "overlay2", ImageStore: engine.GraphDriver, Kernel: "6.1"}, true)
	if want := (Cohort{"h", "docker 20.10.24", "overlay2", engine.GraphDriver, "6.1", true, ""}); c != want {
		t.Errorf("%+v", c)
	}
	for _, by := range Groupings() {
		got, err := ParseBy(string(by))
		if err != nil || got != by {
			t.Errorf("%s: %v", by, err)
		}
		q := Question{By: by, Filter: Filter{Experiment: "x"}}
		if name := q.of(Record{Kind: ForSession, Template: "t", Image: "i", Cohort: c, Arms: map[string]string{"x": "control"}}); name == "" || name == "all" && by != ByAll {
			t.Errorf("grouped by %s it is in %q", by, name)
		}
	}
	sandboxed := c
	sandboxed.Runtime = "runsc"
	if a, b := ByRuntime.Of(Record{Cohort: c}), ByRuntime.Of(Record{Cohort: sandboxed}); a != c.Engine || b != c.Engine+", runsc" || ByNode.Of(Record{Cohort: c}) != "h" {
		t.Errorf("by runtime %q and %q", a, b)
	}
	if _, err := ParseBy("moon"); err == nil || !strings.Contains(err.Error(), "driver") {
		t.Errorf("%v", err)
	}
}
