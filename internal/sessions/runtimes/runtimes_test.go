package runtimes

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOneThatIsMissingComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		c := New([]string{"runsc", "", "kata", "runsc"}, nil, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
		installed := time.Now().Add(70 * time.Second)
		tried := map[string]int{}
		c.try = func(_ context.Context, name string) error {
			tried[name]++
			if name == "kata" || time.Now().After(installed) {
				return nil
			}
			return holdfast.WithHint(errors.New("no such program"), "install it")
		}
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan error, 1)
		go func() { end <- c.Run(ctx) }()
		synctest.Wait()
		for _, name := range []string{"", "kata", "unheard-of"} {
			if err := c.Check(name); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		err := c.Check("runsc")
		if !errors.Is(err, holdfast.ErrNotFound) || holdfast.HintOf(err) != "install it" || !strings.Contains(err.Error(), "no such program") {
			t.Errorf("%v (%s)", err, holdfast.HintOf(err))
		}
		time.Sleep(5 * time.Minute)
		if err := c.Check("runsc"); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-end; err != nil {
			t.Error(err)
		}
		if tried["kata"] != 1 || tried["runsc"] != 4 || tried[""] != 0 {
			t.Errorf("tried: %v", tried)
		}
		if n := strings.Count(log.String(), "does not work"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
	})
}

// An engine without a test of runtimes supports only its default runtime.
func TestEngineWithoutRuntimes(t *testing.T) {
	c := New([]string{"runsc"}, nil, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if c.once(t.Context(), "runsc") || !errors.Is(c.Check("runsc"), holdfast.ErrNotFound) {
		t.Error("it works")
	}
}
