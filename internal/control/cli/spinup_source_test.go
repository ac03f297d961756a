package cli

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/control/api/client"
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
		p, err := a.recordsIn(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		err = withParts(p, func(c *client.Client) error {
			got, err := c.Spinups(t.Context(), spinup.Filter{})
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
