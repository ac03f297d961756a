package puller

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faulty is an engine with the answers of a test, which a real engine gives only
// sometimes. test/pull uses a real engine.
type faulty struct {
	info   func(context.Context) (engine.Info, error)
	events func(ctx context.Context, ref string, yield func(engine.PullEvent, error) bool)
}

func (f faulty) Info(ctx context.Context) (engine.Info, error) { return f.info(ctx) }

func (f faulty) ImageDigest(_ context.Context, ref string) (string, error) {
	if ref == "there:1" {
		return "sha256:1", nil
	}
	return "", engine.ErrNoImage
}

func (f faulty) Pull(ctx context.Context, ref string, _ engine.PullOptions) iter.Seq2[engine.PullEvent, error] {
	return func(yield func(engine.PullEvent, error) bool) { f.events(ctx, ref, yield) }
}

// script yields lines LAYER:STATUS[:CURRENT:TOTAL] one after the other.
func script(lines ...string) func(context.Context, string, func(engine.PullEvent, error) bool) {
	return func(_ context.Context, _ string, yield func(engine.PullEvent, error) bool) {
		for _, l := range lines {
			ev := engine.PullEvent{Time: time.Now()}
			parts := strings.SplitN(l, ":", 4)
			ev.Layer, ev.Status = parts[0], parts[1]
			if ev.Layer == "" {
				ev.Status = l[1:]
			} else if len(parts) == 4 {
				if _, err := fmt.Sscanf(parts[2]+" "+parts[3], "%d %d", &ev.Current, &ev.Total); err != nil {
					panic(err)
				}
			}
			if !yield(ev, nil) {
				return
			}
		}
	}
}

var docker = engine.Info{Name: "docker", Version: "1", StorageDriver: "overlay2", ImageStore: engine.GraphDriver}

func answer(context.Context) (engine.Info, error) { return docker, nil }

const layer = "aaaaaaaaaaaa"

var whole = []string{
	layer + ":Pulling fs layer", layer + ":Downloading:10:1000", layer + ":Download complete",
	layer + ":Extracting:1000:1000", layer + ":Pull complete", ":Status: Downloaded newer image for x:1",
}

// A pull is also measured if the engine reports its version late or never.
func TestEngineThatAnswersLate(t *testing.T) {
	for name, info := range map[string]func(context.Context) (engine.Info, error){
		"late": func(ctx context.Context) (engine.Info, error) {
			time.Sleep(20 * time.Millisecond)
			return docker, ctx.Err()
		},
		"never": func(context.Context) (engine.Info, error) { return engine.Info{}, holdfast.ErrEngine },
	} {
		t.Run(name, func(t *testing.T) {
			p := New(Config{Engine: faulty{info, script(whole...)}, Host: "here"})
			calls := 0
			r, err := p.Pull(t.Context(), Request{Image: "x:1", Kind: spinup.ForRun, Job: "j"}, func(spinup.Pull) { calls++ })
			if err != nil || r.Pull.Download.Bytes != 1000 || !r.Pull.Done || r.Outcome != spinup.OK || r.Kind != spinup.ForRun || r.Job != "j" || r.Cohort.Host != "here" {
				t.Errorf("%+v, %v", r, err)
			}
			if known := r.Cohort.Driver != ""; known != (name == "late") || calls < 2 {
				t.Errorf("cohort %+v, %d calls", r.Cohort, calls)
			}
		})
	}
}

// The engine is queried until it has answered once.
func TestEngineIsAskedOnce(t *testing.T) {
	asked := 0
	p := New(Config{Engine: faulty{func(context.Context) (engine.Info, error) {
		asked++
		if asked == 1 {
			return engine.Info{}, holdfast.ErrEngine
		}
		return docker, nil
	}, script(whole...)}})
	if c, err := p.Cohort(t.Context()); !errors.Is(err, holdfast.ErrEngine) || c.Driver != "" {
		t.Errorf("%+v, %v", c, err)
	}
	for range 3 {
		if c, err := p.Cohort(t.Context()); err != nil || c.Driver != "overlay2" {
			t.Errorf("%+v, %v", c, err)
		}
	}
	if asked != 2 {
		t.Errorf("the engine was asked %d times", asked)
	}
}

// The manifest is read during the pull, and its sizes count.
func TestManifestBesideThePull(t *testing.T) {
	known := make(chan struct{})
	p := New(Config{
		Manifests: manifests(func(context.Context) (map[string]int64, error) {
			return map[string]int64{"sha256:" + strings.Repeat("a", 64): 4242}, nil
		}),
		Engine: faulty{answer, func(ctx context.Context, ref string, yield func(engine.PullEvent, error) bool) {
			script(whole[0])(ctx, ref, yield)
			<-known
			script(layer+":Pull complete", ":Status: Downloaded")(ctx, ref, yield)
		}},
	})
	var once sync.Once
	r, err := p.Pull(t.Context(), Request{Image: "x:1"}, func(now spinup.Pull) {
		if len(now.Layers) > 0 && now.Layers[0].Size == 4242 {
			once.Do(func() { close(known) })
		}
	})
	if err != nil || r.Pull.Download.Bytes != 4242 || !r.Pull.Download.Exact {
		t.Errorf("%+v, %v", r.Pull, err)
	}
}

// The query of a manifest without an answer is cancelled at the end of the pull.
func TestManifestThatDoesNotCome(t *testing.T) {
	asked, ended := make(chan struct{}), make(chan error, 1)
	p := New(Config{
		Manifests: manifests(func(ctx context.Context) (map[string]int64, error) {
			close(asked)
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}),
		Engine: faulty{answer, func(ctx context.Context, ref string, yield func(engine.PullEvent, error) bool) {
			script(whole[0])(ctx, ref, yield)
			<-asked
			script(layer+":Pull complete", ":Status: Downloaded")(ctx, ref, yield)
		}},
	})
	r, err := p.Pull(t.Context(), Request{Image: "x:1"}, nil)
	if err != nil || r.Outcome != spinup.OK || r.Pull.Download.Exact {
		t.Errorf("%+v, %v", r.Pull, err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

type manifests func(context.Context) (map[string]int64, error)

func (m manifests) Sizes(ctx context.Context, _, _ string, _ engine.Login) (map[string]int64, error) {
	return m(ctx)
}

// An image that is up to date needs no manifest.
func TestNoManifestForWhatIsThere(t *testing.T) {
	p := New(Config{
		Engine:    faulty{answer, script(layer+":Already exists", ":Status: Image is up to date")},
		Manifests: manifests(func(context.Context) (map[string]int64, error) { t.Error("it was asked for"); return nil, nil }),
	})
	if r, err := p.Pull(t.Context(), Request{Image: "x:1"}, nil); err != nil || !r.Pull.Cached {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestMissing(t *testing.T) {
	pulls := 0
	p := New(Config{Engine: faulty{answer, func(ctx context.Context, ref string, yield func(engine.PullEvent, error) bool) {
		pulls++
		script(whole...)(ctx, ref, yield)
	}}})
	for _, q := range []Request{{Image: "there:1", Missing: true}, {Image: "not:1", Missing: true}, {Image: "there:1", Missing: true, Platform: "linux/s390x"}, {Image: "there:1"}} {
		before := pulls
		r, err := p.Pull(t.Context(), q, nil)
		left := q.Image == "there:1" && q.Missing && q.Platform == ""
		if err != nil || r.Pull.Cached != left || (pulls == before) != left || r.Cohort.Driver == "" {
			t.Errorf("%+v: %+v, %v", q, r, err)
		}
	}
}

// The error of a pull that ends early names the image and the current layer.
func TestErrors(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name  string
		lines []string
		err   error
		says  []string
		cause spinup.Cause
	}{
		{"ended early", whole[:4], nil, []string{"pull image x:1: the engine's answer ended", "(at layer " + layer + ", extracting)"}, spinup.CutShort},
		{"nothing", nil, nil, []string{"pull image x:1: "}, spinup.CutShort},
		{"mid stream", whole[:2], boom, []string{"boom (at layer " + layer + ", downloading)"}, spinup.Other},
		{"canceled", whole[:2], context.Canceled, []string{"context canceled"}, spinup.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := New(Config{Engine: faulty{answer, func(ctx context.Context, ref string, yield func(engine.PullEvent, error) bool) {
				script(c.lines...)(ctx, ref, yield)
				if c.err != nil {
					yield(engine.PullEvent{}, c.err)
				}
			}}})
			r, err := p.Pull(t.Context(), Request{Image: "x:1"}, nil)
			if err == nil || r.Cause != c.cause || r.Outcome == spinup.OK || r.Pull.Done {
				t.Fatalf("%v: %+v", err, r)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		})
	}
}

// If access to an image is denied, the error contains the problem of the login.
func TestLoginThatCannotBeHad(t *testing.T) {
	denied := errors.New("unauthorized: authentication required")
	p := New(Config{Logins: noLogins{}, Engine: faulty{answer, func(_ context.Context, _ string, yield func(engine.PullEvent, error) bool) {
		yield(engine.PullEvent{}, denied)
	}}})
	_, err := p.Pull(t.Context(), Request{Image: "x:1"}, nil)
	if !errors.Is(err, denied) || !strings.Contains(err.Error(), "the safe is shut") || spinup.CauseOf(err) != spinup.Denied {
		t.Error(err)
	}
}

type noLogins struct{}

func (noLogins) Login(context.Context, string) (engine.Login, error) {
	return engine.Login{}, errors.New("the safe is shut")
}

// Different names of the same image are pulled once, and each request gets the result.
func TestAll(t *testing.T) {
	pulled := map[string]int{}
	lock := make(chan struct{}, 1)
	p := New(Config{Engine: faulty{answer, func(ctx context.Context, ref string, yield func(engine.PullEvent, error) bool) {
		lock <- struct{}{}
		pulled[ref]++
		<-lock
		if ref == "bad:1" {
			yield(engine.PullEvent{}, errors.New("boom"))
			return
		}
		script(whole...)(ctx, ref, yield)
	}}})
	var list []Request
	for _, image := range []string{"a", "bad:1", "a:latest", "docker.io/library/a", "b:1", "NO NAME", "NO NAME"} {
		list = append(list, Request{Image: image})
	}
	list = append(list, Request{Image: "a", Platform: "linux/arm64"})
	done := make([]int, len(list))
	results := p.All(t.Context(), list, Watch{Done: func(i int, r Result) {
		lock <- struct{}{}
		done[i]++
		<-lock
	}})
	var of []int
	for i, r := range results {
		of = append(of, r.Of)
		if (r.Err != nil) != (list[i].Image == "bad:1") || r.Record.ID != results[r.Of].Record.ID || done[i] != 1 {
			t.Errorf("%s: %+v, told %d times", list[i].Image, r, done[i])
		}
	}
	if want := []int{0, 1, 0, 0, 4, 5, 5, 7}; !slices.Equal(of, want) {
		t.Errorf("%v, want %v", of, want)
	}
	if pulled["a"] != 2 || pulled["NO NAME"] != 1 || len(pulled) != 4 {
		t.Errorf("%v", pulled)
	}
}

// A layer on top of the same layers counts for the pull that named it first.
func TestSharedChains(t *testing.T) {
	c := newChains()
	a, b := c.enter(), c.enter()
	for _, s := range []struct {
		p       *pass
		layer   string
		present bool
		want    bool
	}{
		{a, "base", true, false}, {b, "base", true, false},
		{a, "one", false, false}, {a, "one", false, false},
		{b, "one", false, true}, {b, "one", false, false}, // only its first line
		{b, "two", false, false},
		{a, "three", false, false}, {b, "three", false, false}, // on top of others
	} {
		if got := s.p.shares(s.layer, s.present); got != s.want {
			t.Errorf("%s: %v, want %v", s.layer, got, s.want)
		}
	}
	a.leave()
	if d := c.enter(); d.shares("base", true) || d.shares("one", false) {
		t.Error("a pull that has ended still has its layers")
	}
	b.leave()
}

// dockerConfig writes a configuration of docker for one test.
func dockerConfig(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("DOCKER_CONFIG", dir)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDockerLogins(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte("alice:secret"))
	dockerConfig(t, fmt.Sprintf(`{"auths": {"https://index.docker.io/v1/": {"auth": %q}, "r.example.org": {"auth": %[1]q}, "t.example.org": {"identitytoken": "idt"}}}`, auth))
	alice := engine.Login{Username: "alice", Password: "secret"}
	at := func(l engine.Login, server string) engine.Login { l.Server = server; return l }
	for image, want := range map[string]engine.Login{
		"busybox":                  at(alice, "https://index.docker.io/v1/"),
		"docker.io/some/thing:1":   at(alice, "https://index.docker.io/v1/"),
		"r.example.org/some/app:1": at(alice, "r.example.org"),
		"t.example.org/some/app:1": {IdentityToken: "idt", Server: "t.example.org"},
		"other.example.org/app:1":  {},
		"not a name":               {},
	} {
		if got, err := (DockerLogins{}).Login(t.Context(), image); err != nil || got != want {
			t.Errorf("%s: %+v, %v", image, got, err)
		}
	}
}

// The wait for a helper that hangs ends with the caller's context. The logins of other
// registries are available meanwhile.
func TestHelperThatHangs(t *testing.T) {
	dockerConfig(t, `{"credHelpers": {"r.example.org": "hangs"}, "auths": {"t.example.org": {"identitytoken": "idt"}}}`)
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-hangs"), []byte("#!/bin/sh\nexec cat "+fifo+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	l := newLogins(DockerLogins{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.get(ctx, "r.example.org/app:1")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "r.example.org") {
		t.Error(err)
	}
	if got, err := l.get(t.Context(), "t.example.org/app:1"); err != nil || got.IdentityToken != "idt" {
		t.Errorf("another registry's: %+v, %v", got, err)
	}
	// It ends now: the other end is opened, which takes until the helper has
	// opened its own, and closed.
	if err := os.WriteFile(fifo, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A registry on another host is not queried in plain text, and an endless answer is cut
// off.
func TestCareful(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range maxAnswer/1024 + 100 {
			if _, err := w.Write(make([]byte, 1024)); err != nil {
				return
			}
		}
	}))
	defer s.Close()
	c := http.Client{Transport: boundedTransport{&http.Transport{DisableKeepAlives: true}}}
	res, err := c.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(res.Body); err != nil || len(b) != maxAnswer {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	res.Body.Close()
	if _, err := c.Get("http://192.0.2.1/v2/"); err == nil || !strings.Contains(err.Error(), "plain text") {
		t.Error(err)
	}
	if _, err := (Registries{}).Sizes(t.Context(), "busybox", "", engine.Login{}); !errors.Is(err, errCounted) {
		t.Error(err)
	}
}
