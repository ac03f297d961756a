package recorder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// newRecorder returns a Recorder of a new file.
func newRecorder(t *testing.T) *Recorder {
	t.Helper()
	return New(Options{
		File: filepath.Join(t.TempDir(), spinup.FileName), Config: spinup.Config{Keep: spinup.DefaultKeep(), Slow: spinup.DefaultRules()},
		Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
}

func ended(image string) spinup.Record {
	return spinup.NewTimer(spinup.ForSession, image, spinup.Cohort{}).End(nil)
}

// run runs the Recorder until stop is called.
func (s *Recorder) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (s *Recorder) count(t *testing.T) (n int) {
	t.Helper()
	_ = s.with(func(store *spinup.Store) error { // the store may not be open yet
		list, err := store.List(spinup.Filter{})
		n = len(list)
		return err
	})
	return n
}

// A hundred concurrent records are all written before Run returns.
func TestManyAtOnceAreRecorded(t *testing.T) {
	s := newRecorder(t)
	stop := s.run(t)
	for i := range 100 {
		s.Record(ended(fmt.Sprint("image-", i)))
	}
	stop()
	s.open()
	defer s.close()
	if n := s.count(t); n != 100 {
		t.Errorf("%d of 100 are on disk", n)
	}
}

// While a command has the store open, records wait, and are written later.
func TestRecordsWaitForTheStore(t *testing.T) {
	s := newRecorder(t)
	path := s.o.File
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	other, err := spinup.OpenStore(path, spinup.DefaultKeep(), s.log)
	if err != nil {
		t.Fatal(err)
	}
	s.open()
	if s.opened() {
		t.Error("two processes have the store open")
	}
	defer s.run(t)()
	s.Record(ended("early"))
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); s.count(t) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the record was not written within a minute")
		}
	}
}

// Add returns a retryable error while the store is not open.
func TestRecordsAreRefusedUntilTheStoreIsOpen(t *testing.T) {
	s := newRecorder(t)
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Add(ended("x")); !errors.Is(err, holdfast.ErrBusy) || holdfast.HintOf(err) == "" {
		t.Error(err)
	}
	s.open()
	defer s.close()
	if err := s.Add(ended("x")); err != nil || s.count(t) != 1 {
		t.Errorf("%v, %d records", err, s.count(t))
	}
}

func TestTooManyRecordsAreCounted(t *testing.T) {
	s := newRecorder(t)
	defer s.close()
	for range queueLen + 3 { // Run does not write
		s.Record(ended("x"))
	}
	var lost dto.Metric
	if err := s.lost.Write(&lost); err != nil || lost.GetCounter().GetValue() != 3 {
		t.Errorf("%v are lost, %v", lost.GetCounter().GetValue(), err)
	}
}
