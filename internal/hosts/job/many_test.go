package job_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
)

// keeping keeps records in a store.
type keeping struct{ store *spinup.Store }

func (k keeping) Record(_ context.Context, records ...spinup.Record) error {
	for _, r := range records {
		if err := k.store.Append(r); err != nil {
			return err
		}
	}
	return nil
}

// witness is an engine that saves the state of each container before its removal: when
// the record is checked, the container may be gone.
type witness struct {
	*docker.Engine

	mu   sync.Mutex
	seen map[string]engine.Container // by id
}

func (w *witness) Remove(ctx context.Context, id string) error {
	c, err := w.Inspect(ctx, id)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.seen[id] = c
	w.mu.Unlock()
	return w.Engine.Remove(ctx, id)
}

// mustHaveSeen compares a record with its container.
func (w *witness) mustHaveSeen(t *testing.T, r spinup.Record) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.seen[r.Container]; got.Image != r.Image || got.Name != r.Name || got.Labels[job.LabelJob] != r.Job {
		t.Errorf("container %s is %s of %s in job %s, its record says %s of %s in job %s",
			r.Container, got.Name, got.Image, got.Labels[job.LabelJob], r.Name, r.Image, r.Job)
	}
}

// Spin-ups at once, of two jobs with four images and two runs each, and a hundred of ten jobs
// with -long: each is recorded with the bytes of its image and with its container.
func TestManySpinups(t *testing.T) {
	labtest.NeedLong(t, "TestPulledOnce has spin-ups at once")
	const twice = 2
	images, jobs := labtest.Count(4, 5), labtest.Count(2, 10)
	r := startRegistry(t)
	store, err := spinup.OpenStore(filepath.Join(t.TempDir(), "spinups.db"), spinup.DefaultKeep(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	sizes := map[string]int64{} // every image has its own
	var list []job.Job
	for n := range jobs {
		j := job.Job{Parallelism: twice, Steps: []job.Step{{Command: []string{registry.Done}}}}
		for k := range images {
			i := n*images + k
			tag := fmt.Sprintf("many-%d:1", i)
			image := r.Host() + "/" + tag
			sizes[image] = push(t, r, tag, uint64(100+i), int64(1000+100*i))
			one := job.Image{Image: image}
			if k == 0 {
				one.Command = []string{registry.Pause}
			}
			j.Images = append(j.Images, one)
		}
		list = append(list, j)
	}
	saw := &witness{Engine: labtest.Docker(t), seen: map[string]engine.Container{}}
	of := map[string]job.Result{}
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, j := range list {
		b := newBed(t)
		b.Engine, b.Recorder = saw, keeping{store}
		b.AtOnce = 1               // of each job
		b.limit = 10 * time.Minute // under the race detector on a busy host
		running.Go(func() {
			res, err := b.run(t.Context(), j)
			if err != nil || res.ExitCode != 0 || len(res.Spinups) != images*twice {
				t.Errorf("%+v, %v", res, err)
			}
			mu.Lock()
			defer mu.Unlock()
			of[res.Job] = res
		})
	}
	running.Wait()
	records, err := store.List(spinup.Filter{})
	if err != nil || len(records) != jobs*images*twice {
		t.Fatalf("%d records, %v", len(records), err)
	}
	containers, bytes, count := map[string]bool{}, map[string]int64{}, map[string]int{}
	for _, rec := range records {
		saw.mustHaveSeen(t, rec)
		containers[rec.Container] = true
		count[rec.Image]++
		bytes[rec.Image] += rec.Pull.Download.Bytes
		if rec.Outcome != spinup.OK || rec.Pull.Image != rec.Image || rec.Times[spinup.Create] <= 0 || rec.Times[spinup.Start] <= 0 ||
			!strings.HasPrefix(rec.Name, "holdfast-"+rec.Job+"-") || rec.Cohort.Driver == "" {
			t.Errorf("%+v", rec)
		}
		found := false
		for _, s := range of[rec.Job].Spinups {
			found = found || s.ID == rec.ID && s.Container == rec.Container && s.Image == rec.Image
		}
		if !found {
			t.Errorf("job %s does not know its record %s", rec.Job, rec.ID)
		}
	}
	if len(containers) != len(records) {
		t.Errorf("%d containers in %d records", len(containers), len(records))
	}
	for image, size := range sizes {
		if count[image] != twice || bytes[image] != size {
			t.Errorf("%s: %d records with %d bytes, want %d with %d", image, count[image], bytes[image], twice, size)
		}
	}
}
