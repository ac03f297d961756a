// Package spinup compares the records of internal/hosts/spinup about pulls with the logs of a
// real registry and of a proxy in front of it, on a real engine.
package spinup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
	"holdfast/test/spinup/scene"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// open starts a stage for one test.
func open(t testing.TB, o lab.Options) *scene.Stage {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: private engines and registries take their time, and root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stage, err := scene.Open(ctx, labtest.Options(o))
	t.Cleanup(func() {
		if err := stage.Close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return stage
}

// TestAgainstARegistry shares one stage between the tests that do not change it.
func TestAgainstARegistry(t *testing.T) {
	s := open(t, lab.Options{})
	for _, c := range []struct {
		name string
		test func(*testing.T, *scene.Stage)
	}{
		{"BytesAreTheAccessLogs", bytesAreTheAccessLogs},
		{"TimesAreTheStores", timesAreTheStores},
		{"ThrottledIsSlow", throttledIsSlow},
		{"CutIsARetryAndNotCountedTwice", cutIsARetryAndNotCountedTwice},
		{"JoinedCountsNothingOfTheOthers", joinedCountsNothingOfTheOthers},
		{"WhatIsThereIsNotFetched", whatIsThereIsNotFetched},
		{"BadEndsAreClear", badEndsAreClear},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Proxy.Passed()
			c.test(t, s)
		})
	}
}

// reduce returns the figures of a stream, on request with the sizes of the manifest.
func reduce(t testing.TB, s *scene.Stage, stream scene.Stream, manifest bool) (spinup.Pull, error) {
	t.Helper()
	o := spinup.Options{Image: stream.Image, Begun: stream.Begun, ImageStore: imageStore(t, s)}
	if manifest {
		o.Sizes = stream.Sizes
	}
	r := spinup.NewReducer(o)
	for _, ev := range stream.Events {
		r.Add(ev)
	}
	return r.Finish(stream.Ended, stream.Err)
}

func imageStore(t testing.TB, s *scene.Stage) string {
	t.Helper()
	info, err := s.Engine.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.ImageStore
}

// served returns the bytes of layers in the registry's access log, from a line on, and the
// number of its lines.
func served(t testing.TB, r *registry.Registry, sizes map[string]int64, from int) (int64, int) {
	t.Helper()
	all, err := r.Accesses()
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	for _, a := range all[from:] {
		if sizes[a.Blob()] > 0 && a.Method == "GET" {
			n += a.Bytes
		}
	}
	return n, len(all)
}

// bytesAreTheAccessLogs pulls different images and compares the bytes with the registry's log.
// Unknown bytes must be flagged. The test logs their number.
func bytesAreTheAccessLogs(t *testing.T, s *scene.Stage) {
	shapes := [][]int64{
		{1_000}, {50_000, 50}, {1 << 20}, {300_000, 20_000, 700, 5_000, 100_000, 9},
		{6 << 20, 3 << 20, 40}, {10, 20, 30, 40, 50, 60, 70, 80}, {12 << 20, 500, 5 << 20, 500_000},
	}
	_, line := served(t, s.Registry, nil, 0)
	for manifest, unknown := range map[bool]int{true: 0, false: 0} {
		for i, sizes := range shapes {
			name := fmt.Sprintf("test/bytes-%v-%d:1", manifest, i)
			seed := uint64(10_000 + 100*i)
			if manifest {
				seed += 5_000
			}
			known, err := s.Push(t.Context(), name, scene.Layers(seed, sizes...))
			if err != nil {
				t.Fatal(err)
			}
			stream := scene.Pull(t.Context(), s.Engine, s.Registry.Host()+"/"+name, engine.PullOptions{}, nil)
			stream.Sizes = known
			p, err := reduce(t, s, stream, manifest)
			if err != nil {
				t.Fatal(err)
			}
			want, end := served(t, s.Registry, known, line)
			line = end
			if !p.Download.Exact {
				unknown++
				if manifest {
					t.Errorf("%s: bytes are unknown with the manifest", name)
				}
			} else if p.Download.Bytes != want && !p.Joined {
				t.Errorf("%s: %d bytes, the registry served %d: %+v", name, p.Download.Bytes, want, p.Layers)
			}
			if p.Joined || p.Cached || !p.Done {
				t.Errorf("%s: no other client pulled it, and it was not there: %+v", name, p)
			}
		}
		t.Logf("with the manifest %v: %d of %d pulls have unknown bytes", manifest, unknown, len(shapes))
	}
}

// timesAreTheStores checks the times that an engine with the containerd image store has of
// each layer, also of those that come and go between two polls. How exact they are is
// recorded (TestRecordedTruth of internal/hosts/spinup) and measured
// (BenchmarkAgainstTruth).
func timesAreTheStores(t *testing.T, s *scene.Stage) {
	sizes, err := s.Push(t.Context(), "test/times:1", scene.Layers(50_000, 9<<20, 1_000, 3<<20, 70_000))
	if err != nil {
		t.Fatal(err)
	}
	stream := scene.Pull(t.Context(), s.Engine, s.Registry.Host()+"/test/times:1", engine.PullOptions{}, nil)
	stream.Sizes = sizes
	p, err := reduce(t, s, stream, true)
	if err != nil {
		t.Fatal(err)
	}
	store, timed := imageStore(t, s), 0
	for _, ev := range stream.Events {
		if ev.Times == nil {
			continue
		}
		timed++
		x := *ev.Times
		for i, at := range []time.Time{x.Requested, x.Received, x.Stored, x.Extracted, stream.Ended} {
			if at.Before(stream.Begun) || i > 0 && at.Before([]time.Time{x.Requested, x.Received, x.Stored, x.Extracted}[i-1]) {
				t.Errorf("layer %s: %+v of a pull from %v to %v", ev.Layer, x, stream.Begun, stream.Ended)
			}
		}
	}
	if want := len(sizes); store == engine.ContainerdStore && timed != want || store == engine.GraphDriver && timed != 0 {
		t.Errorf("%d layers of %d have times in the store %s", timed, want, store)
	}
	if p.Download.Rate <= 0 || p.Extract.Rate <= 0 {
		t.Errorf("a pull without a rate: %s", p.Line())
	}
}

// throttledIsSlow applies the documented rule to connections of 15 and 25 MiB/s.
func throttledIsSlow(t *testing.T, s *scene.Stage) {
	rules := spinup.DefaultRules()
	for i, l := range scene.Links() {
		name := fmt.Sprintf("test/throttled-%d:1", i)
		sizes, err := s.Push(t.Context(), name, scene.Layers(uint64(20_000+10*i), l.Third, l.Third, l.Third))
		if err != nil {
			t.Fatal(err)
		}
		s.Proxy.Passed()
		s.Proxy.Set(registry.Faults{Rate: l.Rate * (1 << 20)})
		stream := scene.Pull(t.Context(), s.Engine, s.Proxy.Host()+"/"+name, engine.PullOptions{}, nil)
		s.Proxy.Set(registry.Faults{})
		p, err := reduce(t, s, stream, false)
		if err != nil {
			t.Fatal(err)
		}
		l.Check(t, rules.Judge(spinup.Record{Outcome: spinup.OK, Pull: &p}), s.Proxy.Passed(), sizes)
	}
}

// play plays a scene and returns its streams by name.
func play(t *testing.T, s *scene.Stage, name string) map[string]scene.Stream {
	t.Helper()
	for _, sc := range scene.Scenes() {
		if sc.Name != name {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		streams, err := sc.Play(ctx, s.Env)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]scene.Stream{}
		for _, st := range streams {
			out[st.Name] = st
		}
		return out
	}
	t.Fatalf("there is no scene %q", name)
	return nil
}

func cutIsARetryAndNotCountedTwice(t *testing.T, s *scene.Stage) {
	stream := play(t, s, "cut")["cut"]
	p, err := reduce(t, s, stream, false)
	if err != nil {
		t.Fatal(err)
	}
	var passed, all int64
	cuts := 0
	for _, b := range s.Proxy.Passed() {
		if stream.Sizes[b.Blob] > 0 {
			passed += b.Bytes
			if b.Cut {
				cuts++
			}
		}
	}
	for _, size := range stream.Sizes {
		all += size
	}
	retries := 1
	if imageStore(t, s) == engine.ContainerdStore {
		retries = 0 // containerd goes on by itself, without a word
	}
	if cuts != 1 || p.Retries != retries || (p.RetryWait > 0) != (retries > 0) || p.Download.Bytes != all || passed != all || !p.Download.Exact {
		t.Errorf("%d cuts, %d retries of %v; %d bytes, %d passed, the layers have %d", cuts, p.Retries, p.RetryWait, p.Download.Bytes, passed, all)
	}
	if retries > 0 && !strings.Contains(p.Line(), "1 retry") {
		t.Errorf("the line is %q", p.Line())
	}
}

func joinedCountsNothingOfTheOthers(t *testing.T, s *scene.Stage) {
	_, line := served(t, s.Registry, nil, 0)
	streams := play(t, s, "joined")
	first, err := reduce(t, s, streams["joined-first"], false)
	if err != nil {
		t.Fatal(err)
	}
	second, err := reduce(t, s, streams["joined-second"], false)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := served(t, s.Registry, streams["joined-first"].Sizes, line)
	if first.Download.Bytes+second.Download.Bytes != want || first.Joined || !second.Joined || second.Download.Rate != 0 {
		t.Errorf("first %+v, second %+v, the registry served %d", first.Download, second.Download, want)
	}
	if !second.Done || second.Cached || len(spinup.DefaultRules().Judge(spinup.Record{Pull: &second})) > 0 {
		t.Errorf("the second is %+v", second)
	}
}

func whatIsThereIsNotFetched(t *testing.T, s *scene.Stage) {
	p, err := reduce(t, s, play(t, s, "partial")["partial"], false)
	there := 2
	if imageStore(t, s) == engine.ContainerdStore {
		there = 0 // it says nothing of them
	}
	if fetched, joined, present := counts(p); err != nil || fetched != 2 || joined != 0 || present != there || p.Cached || !p.Download.Exact {
		t.Errorf("%+v, %v", p, err)
	}
	p, err = reduce(t, s, play(t, s, "up-to-date")["up-to-date"], false)
	if err != nil || !p.Cached || !p.Done || p.Download.Bytes != 0 || p.Line() != "image was in the cache" {
		t.Errorf("%+v, %v", p, err)
	}
}

// badEndsAreClear checks that each failed pull is an error with its reason, and not a success.
func badEndsAreClear(t *testing.T, s *scene.Stage) {
	for name, want := range map[string]spinup.Cause{
		"missing": spinup.NoImage, "unauthorized": spinup.Denied, "no-platform": spinup.NoPlatform, "no-space": spinup.NoSpace,
	} {
		p, err := reduce(t, s, play(t, s, name)[name], false)
		bad(t, name, p, err, want)
	}
	guarded := s.Guarded.Host() + "/scene/guarded:1"
	login := engine.Login{Username: scene.Login().User, Password: "wrong", Server: s.Guarded.Host()}
	p, err := reduce(t, s, scene.Pull(t.Context(), s.Engine, guarded, engine.PullOptions{Login: login}, nil), false)
	bad(t, "wrong password", p, err, spinup.Denied)
	login.Password = scene.Login().Password
	if p, err := reduce(t, s, scene.Pull(t.Context(), s.Engine, guarded, engine.PullOptions{Login: login}, nil), false); err != nil || !p.Done {
		t.Errorf("with the right password: %+v, %v", p, err)
	}
	if _, err := s.Push(t.Context(), "test/zstd:1", []registry.Layer{{Seed: 40_000, Size: 1_000, Zstd: true}}); err != nil {
		t.Fatal(err)
	}
	p, err = reduce(t, s, scene.Pull(t.Context(), s.Engine, s.Registry.Host()+"/test/zstd:1", engine.PullOptions{}, nil), false)
	if info, ierr := s.Engine.Info(t.Context()); ierr != nil {
		t.Fatal(ierr)
	} else if !strings.HasPrefix(info.Version, "20.10.") {
		if err != nil || !p.Done {
			t.Errorf("zstd: %+v, %v", p, err)
		}
	} else if hint := holdfast.HintOf(spinup.CauseOf(err).Explain(err)); spinup.CauseOf(err) != spinup.Unreadable || !strings.Contains(hint, "Docker 23.0") {
		t.Errorf("zstd: %v, hint %q", err, hint)
	}
	p, err = reduce(t, s, scene.Pull(t.Context(), s.Engine, "127.0.0.1:1/no/registry:1", engine.PullOptions{}, nil), false)
	bad(t, "no registry", p, err, spinup.Unreachable)
}

func bad(t *testing.T, name string, p spinup.Pull, err error, want spinup.Cause) {
	t.Helper()
	if got := spinup.CauseOf(err); got != want || p.Done || p.Cached || holdfast.HintOf(spinup.CauseOf(err).Explain(err)) == "" {
		t.Errorf("%s: %s (%v), done %v", name, got, err, p.Done)
	}
	timer := spinup.NewTimer(spinup.ForPull, p.Image, spinup.Cohort{})
	timer.Pulled(p)
	if r := timer.End(err); r.Outcome != spinup.Failed || r.Failed != spinup.Download || r.Cause != want {
		t.Errorf("%s: its record says %s in %q, %s", name, r.Outcome, r.Failed, r.Cause)
	}
}

// A pull whose daemon is killed in the middle is not a success.
func TestEngineThatDiesIsNoSuccess(t *testing.T) {
	s := open(t, lab.Options{})
	if _, err := s.Push(t.Context(), "test/dies:1", scene.Layers(30_000, 4<<20)); err != nil {
		t.Fatal(err)
	}
	store := imageStore(t, s)
	release := make(chan struct{})
	s.Proxy.Set(registry.Faults{Hold: release, HoldAfter: 2 << 20})
	defer close(release)
	var once sync.Once
	stream := scene.Pull(t.Context(), s.Engine, s.Proxy.Host()+"/test/dies:1", engine.PullOptions{}, func(ev engine.PullEvent) {
		if ev.Current > 0 {
			once.Do(func() {
				if err := s.Private.Kill(); err != nil {
					t.Error(err)
				}
			})
		}
	})
	r := spinup.NewReducer(spinup.Options{Begun: stream.Begun, ImageStore: store})
	for _, ev := range stream.Events {
		r.Add(ev)
	}
	p, err := r.Finish(stream.Ended, stream.Err)
	if !errors.Is(err, holdfast.ErrEngine) || p.Done || p.Download.Exact || p.Download.Bytes > 4<<20 {
		t.Errorf("%+v, %v", p, err)
	}
	if l, ok := p.Stuck(); !ok || l.State != spinup.Downloading {
		t.Errorf("it was at %+v", l)
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
