package job_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/puller"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// patience bounds each wait.
const patience = 2 * time.Minute

// bed is a runner on the package's engine, with its events and its records.
type bed struct {
	*job.Runner
	t      *testing.T
	docker *docker.Engine
	limit  time.Duration // of one job
	out    bytes.Buffer
	errs   bytes.Buffer

	mu      sync.Mutex
	events  []job.Event
	records []spinup.Record
	onEvent func(job.Event)
}

func newBed(t *testing.T) *bed {
	t.Helper()
	e := labtest.Docker(t)
	self, err := job.Self()
	if err != nil {
		t.Fatal(err)
	}
	p := puller.New(puller.Config{Engine: e, Host: "test"})
	cohort, err := p.Cohort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, docker: e, limit: patience}
	b.Runner = &job.Runner{
		Engine: e, Puller: testPuller{p}, Recorder: b, Cohort: cohort, Owner: self,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Stdout: &b.out, Stderr: &b.errs, Tell: b.heard,
	}
	return b
}

func (b *bed) heard(e job.Event) {
	b.mu.Lock()
	b.events = append(b.events, e)
	do := b.onEvent
	b.mu.Unlock()
	if do != nil {
		do(e)
	}
}

func (b *bed) Record(_ context.Context, records ...spinup.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, records...)
	return nil
}

// run runs a job, and checks that none of its objects are left.
func (b *bed) run(ctx context.Context, j job.Job) (job.Result, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	id := job.NewID()
	res, err := b.Run(ctx, id, j)
	b.mustBeGone(id)
	return res, err
}

func (b *bed) mustBeGone(id string) {
	b.t.Helper()
	labels := map[string]string{job.LabelJob: id}
	containers, err := b.docker.List(context.Background(), labels)
	if err != nil || len(containers) > 0 {
		b.t.Errorf("containers are left: %+v, %v", containers, err)
	}
	networks, err := b.docker.Networks(context.Background(), labels)
	if err != nil || len(networks) > 0 {
		b.t.Errorf("networks are left: %+v, %v", networks, err)
	}
}

type testPuller struct{ p *puller.Puller }

func (p testPuller) Pull(ctx context.Context, image, platform string, missing bool) (spinup.Pull, error) {
	r, err := p.p.Pull(ctx, puller.Request{Image: image, Platform: platform, Missing: missing}, nil)
	return *r.Pull, err
}

// busybox is a container that runs until it is killed.
func busybox(name string) job.Image { return job.Image{Name: name, Image: labtest.Busybox} }

func sh(script string) []job.Step { return []job.Step{{Name: "step", Run: script}} }

// startRegistry starts a registry with images by tag.
func startRegistry(t *testing.T) *registry.Registry {
	t.Helper()
	r, err := registry.Start(t.Context(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// push puts a runnable image with a layer of its own into the registry, and
// returns the compressed size of all its layers.
func push(t *testing.T, r *registry.Registry, tag string, seed uint64, size int64, below ...registry.Layer) int64 {
	t.Helper()
	image, err := registry.Runnable(runtime.GOARCH, seed, size, below...)
	if err != nil {
		t.Fatal(err)
	}
	sizes, err := r.Push(t.Context(), image, tag, registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, n := range sizes {
		sum += n
	}
	return sum
}

func (b *bed) told() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var s strings.Builder
	for _, e := range b.events {
		s.WriteString(e.Name + ": " + e.Line + "\n")
	}
	return s.String()
}

func (b *bed) inspect(id string) engine.Container {
	b.t.Helper()
	c, err := b.docker.Inspect(context.Background(), id)
	if err != nil {
		b.t.Error(err)
	}
	return c
}
