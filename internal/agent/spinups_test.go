package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// keeping makes the records of an agent without an engine.
func keeping(t *testing.T) *spinups {
	t.Helper()
	c := config.Default()
	c.DataDir, c.RunDir = t.TempDir(), t.TempDir()
	a := newAgent(c, Options{Log: slog.New(slog.DiscardHandler)}, nil, nil)
	a.metrics = prometheus.NewRegistry()
	return a.newSpinups(engine.Info{Name: "docker", Version: "1"})
}

func ended(image string) spinup.Record {
	return spinup.NewTimer(spinup.ForSession, image, spinup.Cohort{}).End(nil)
}

// run runs the keeping until stop is called.
func (s *spinups) run(t *testing.T) (stop func()) {
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

func (s *spinups) count(t *testing.T) (n int) {
	t.Helper()
	_ = s.with(func(store *spinup.Store) error { // it may not be open yet
		list, err := store.List(spinup.Filter{})
		n = len(list)
		return err
	})
	return n
}

// A hundred at once are all recorded, and what was told of before the end is on
// disk after it.
func TestManyAtOnceAreRecorded(t *testing.T) {
	s := keeping(t)
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

// A command has the store open when the agent starts: it is waited for, and what
// ends meanwhile is kept.
func TestRecordsWaitForTheStore(t *testing.T) {
	s := keeping(t)
	path := s.path
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	other, err := spinup.OpenStore(path, spinup.DefaultKeep(), s.log)
	if err != nil {
		t.Fatal(err)
	}
	s.open()
	if s.opened() {
		t.Error("two have the store open")
	}
	defer s.run(t)()
	s.Record(ended("early"))
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); s.count(t) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the record was not kept within a minute")
		}
	}
}

// Who hands a record over before the store is open, or when it is closed again, is
// told to come again, and not that it is lost.
func TestRecordsAreRefusedUntilTheStoreIsOpen(t *testing.T) {
	s := keeping(t)
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
	s := keeping(t)
	defer s.close()
	for range recordQueue + 3 { // nobody writes
		s.Record(ended("x"))
	}
	var lost dto.Metric
	if err := s.lost.Write(&lost); err != nil || lost.GetCounter().GetValue() != 3 {
		t.Errorf("%v are lost, %v", lost.GetCounter().GetValue(), err)
	}
}
