package recordings_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/recordings"
)

// made returns a recording that began at the given second.
func made(second int) *profile.Profile {
	return &profile.Profile{
		Meta:    profile.Meta{Format: 1, Host: "h", Kernel: "6.1", CPUs: 2, Hz: 99, Began: time.Unix(int64(second), 0), Seconds: 10},
		Frames:  []profile.Frame{{Name: "main.work", File: "/app"}},
		Samples: []profile.Sample{{Task: profile.Task{Container: "web", ContainerID: "c1", Comm: "app"}, Stack: []int{0}, Count: 990}},
	}
}

func TestOldRecordingsAreRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "recordings")
	n := 0
	b := recordings.New(dir, func(context.Context, recordings.Request) (*profile.Profile, error) {
		n++
		return made(n), nil
	})
	if all, err := b.List(); len(all) != 0 || err != nil {
		t.Errorf("without recordings: %v, %v", all, err)
	}
	for range recordings.Keep + 3 {
		if _, err := b.Record(t.Context(), recordings.Request{For: time.Second, Container: "web"}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := b.List()
	if err != nil || len(all) != recordings.Keep || all[0].At.Unix() != recordings.Keep+3 {
		t.Fatalf("%d recordings are kept, the newest of %v: %v", len(all), all[0].At, err)
	}
	if r := all[0]; r.Samples != 990 || r.Busy != .5 || r.Container != "web" || r.Bytes == 0 {
		t.Errorf("newest recording %+v", r)
	}
	if p, err := b.Open(all[0].ID); err != nil || p.Total() != 990 {
		t.Errorf("open the newest: %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 2*recordings.Keep {
		t.Errorf("%d files, %v", len(files), err)
	}
	for _, id := range []string{"", "../recordings", "20260101-000000-000", "x/../" + all[0].ID, all[0].ID + ".pb.gz"} {
		if _, err := b.Open(id); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("open %q: %v", id, err)
		}
	}
	// A crash between writing the two files, and a foreign file.
	if err := errors.Join(os.Remove(filepath.Join(dir, all[1].ID+".json")), os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, all[2].ID+".json"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if left, err := b.List(); err != nil || len(left) != recordings.Keep-2 {
		t.Errorf("after a crash %d recordings are listed, %v", len(left), err)
	}
}

func TestOneRecordingAtATime(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	b := recordings.New(t.TempDir(), func(context.Context, recordings.Request) (*profile.Profile, error) {
		close(begun)
		<-end
		return nil, errors.New("no perf here")
	})
	done := make(chan error)
	go func() {
		_, err := b.Record(context.Background(), recordings.Request{For: time.Second})
		done <- err
	}()
	<-begun
	if _, err := b.Record(t.Context(), recordings.Request{For: time.Second}); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("concurrent recording: %v", err)
	}
	close(end)
	if err := <-done; err == nil || err.Error() != "record: no perf here" {
		t.Errorf("first recording: %v", err)
	}
	for _, d := range []time.Duration{0, time.Hour, -1} {
		if _, err := b.Record(t.Context(), recordings.Request{For: d}); err == nil {
			t.Errorf("a recording of %v was made", d)
		}
	}
}
