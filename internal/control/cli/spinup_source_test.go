package cli

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/hosts/spinup"
)

// An archive has more records than this host would keep, and reading does not remove
// them.
func TestReadingAnArchiveLeavesItWhole(t *testing.T) {
	dir := t.TempDir()
	s, err := spinup.OpenStore(filepath.Join(dir, spinup.FileName), spinup.DefaultKeep(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := s.Append(done("a")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	a := &app{deps: Deps{Host: func(context.Context) (Host, error) {
		return Host{Spinup: spinup.Config{Slow: spinup.DefaultRules(), Keep: spinup.Keep{Count: 1, Age: time.Nanosecond}}}, nil
	}}}
	for range 2 {
		err := a.withStore(t.Context(), dir, func(ctx context.Context, from spinupSource) error {
			got, err := from.Spinups(ctx, spinup.Filter{})
			if len(got) != 5 {
				t.Errorf("%d of 5 records are there", len(got))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
