package spinup_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/test/spinup/scene"
)

// totals are the figures of a recorded stream, calculated by hand from the stream, the
// registry's access log and the proxy's log. Why explains the calculation.
type totals struct {
	Why           string  `json:"why"`
	Done          bool    `json:"done"`
	Cached        bool    `json:"cached"`
	Joined        bool    `json:"joined"`
	Cause         string  `json:"cause,omitempty"`
	DownloadBytes int64   `json:"download_bytes"`
	DownloadMS    float64 `json:"download_ms"`
	DownloadExact bool    `json:"download_exact"`
	ExtractBytes  int64   `json:"extract_bytes"`
	ExtractMS     float64 `json:"extract_ms"`
	ExtractExact  bool    `json:"extract_exact"`
	Retries       int     `json:"retries"`
	RetryMS       float64 `json:"retry_ms"`
	Layers        [3]int  `json:"layers"` // fetched, joined, present
}

// streams are the recorded streams by engine/name.
func streams(t testing.TB) map[string]scene.File {
	t.Helper()
	paths, err := filepath.Glob("testdata/*/*.jsonl")
	if err != nil || len(paths) < 10 {
		t.Fatalf("%d recorded streams, %v", len(paths), err)
	}
	all := map[string]scene.File{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := scene.Read(bytes.NewReader(data), begun)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		dir, name := filepath.Split(strings.TrimSuffix(path, ".jsonl"))
		all[filepath.Base(dir)+"/"+name] = f
	}
	return all
}

// begun is when the streams of tests begin.
var begun = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func options(f scene.File, sizes bool) spinup.Options {
	o := spinup.Options{Image: f.Head.Image, Begun: begun, ImageStore: f.Head.ImageStore}
	if sizes {
		o.Sizes = f.Head.Sizes
	}
	return o
}

// reduce returns the figures of a stream.
func reduce(f scene.File, o spinup.Options) (spinup.Pull, error) {
	r := spinup.NewReducer(o)
	for _, ev := range f.Events {
		r.Add(ev)
	}
	return r.Finish(f.Ended, f.Err)
}

func totalsOf(p spinup.Pull, err error) totals {
	millis := func(m interface{ MarshalJSON() ([]byte, error) }) float64 {
		var v float64
		text, merr := m.MarshalJSON()
		if errors.Join(merr, json.Unmarshal(text, &v)) != nil {
			return -1
		}
		return v
	}
	got := totals{
		Done: p.Done, Cached: p.Cached, Joined: p.Joined, Cause: string(spinup.CauseOf(err)),
		DownloadBytes: p.Download.Bytes, DownloadMS: millis(p.Download.Wall), DownloadExact: p.Download.Exact,
		ExtractBytes: p.Extract.Bytes, ExtractMS: millis(p.Extract.Wall), ExtractExact: p.Extract.Exact,
		Retries: p.Retries, RetryMS: millis(p.RetryWait),
	}
	got.Layers[0], got.Layers[1], got.Layers[2] = counts(p)
	return got
}

func TestRecordedStreams(t *testing.T) {
	recorded := streams(t)
	checked := map[string]bool{}
	files, err := filepath.Glob("testdata/*/totals.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no totals, %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]totals{}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&want); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for name, w := range want {
			name = filepath.Base(filepath.Dir(file)) + "/" + name
			checked[name] = true
			t.Run(name, func(t *testing.T) {
				f := recorded[name]
				got := totalsOf(reduce(f, options(f, true)))
				w.Why = ""
				if diff := cmp.Diff(w, got); diff != "" {
					t.Errorf("want -, got +:\n%s", diff)
				}
			})
		}
	}
	for name := range recorded {
		if !checked[name] {
			f := recorded[name]
			p, err := reduce(f, options(f, true))
			text, _ := json.Marshal(totalsOf(p, err))
			t.Errorf("%s has no totals; it comes to %s", name, text)
		}
	}
}

// TestWithoutTheManifest checks which figures depend on the sizes of the manifest.
func TestWithoutTheManifest(t *testing.T) {
	for name, f := range streams(t) {
		if f.Head.ImageStore != engine.GraphDriver {
			continue
		}
		with, _ := reduce(f, options(f, true))
		without, _ := reduce(f, options(f, false))
		if !without.Download.Exact && with.Download.Exact {
			t.Logf("%s: not to the byte without the manifest", name)
		}
		if without.Download.Exact && without.Download.Bytes != with.Download.Bytes {
			t.Errorf("%s: %d bytes, with the manifest %d", name, without.Download.Bytes, with.Download.Bytes)
		}
	}
}

// TestLayersTellTheWhole compares the figures of the layers with those of the pull.
func TestLayersTellTheWhole(t *testing.T) {
	for name, f := range streams(t) {
		p, _ := reduce(f, options(f, true))
		var bytes int64
		for _, l := range p.Layers {
			bytes += l.Fetched
			if l.Extract.To > 0 && l.Download.To > 0 && l.Extract.From < l.Download.To {
				t.Errorf("%s: layer %s is extracted (%v) before it is downloaded (%v)", name, l.ID, l.Extract, l.Download)
			}
		}
		if bytes != p.Download.Bytes {
			t.Errorf("%s: the layers have %d bytes, the pull %d", name, bytes, p.Download.Bytes)
		}
		if stuck, ok := p.Stuck(); len(p.Layers) > 0 && ok == p.Done {
			t.Errorf("%s: done is %v and layer %q is stuck", name, p.Done, stuck.ID)
		} else if ok && !slices.ContainsFunc(p.Layers, func(l spinup.Layer) bool { return l.ID == stuck.ID }) {
			t.Errorf("%s: layer %q is not of this pull", name, stuck.ID)
		}
	}
}

// counts returns how many layers the pull fetched, how many it joined, and how many
// were present.
func counts(p spinup.Pull) (fetched, joined, present int) {
	for _, l := range p.Layers {
		switch {
		case l.State == spinup.Present:
			present++
		case l.Joined:
			joined++
		case l.State == spinup.Downloaded || l.State == spinup.Extracting || l.State == spinup.Complete:
			fetched++
		}
	}
	return fetched, joined, present
}
