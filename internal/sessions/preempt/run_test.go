package preempt

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scripted is a source whose run is a function.
type scripted struct {
	name string
	run  func(context.Context, func(...Notice)) error
}

func (s scripted) Name() string { return s.name }
func (s scripted) Run(ctx context.Context, report func(...Notice)) error {
	return s.run(ctx, report)
}

// TestFailingSourceIsTriedAgainQuietly runs in fake time: the pauses are exact.
func TestFailingSourceIsTriedAgainQuietly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		var at []time.Duration
		s := scripted{"x", func(ctx context.Context, report func(...Notice)) error {
			at = append(at, time.Since(start)/time.Second)
			switch len(at) {
			case 9:
				report() // it works, and fails again
			case 10:
				return nil // a source must not end without an error
			case 11:
				cancel()
				<-ctx.Done()
			}
			return errors.New("no route")
		}}
		log := &logBuffer{}
		Run(ctx, []Source{s}, func(n Notice) { t.Errorf("told %+v", n) }, slog.New(slog.NewTextHandler(log, nil)))
		if diff := cmp.Diff([]time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183, 184, 186}, at); diff != "" {
			t.Errorf("tried at the wrong seconds:\n%s", diff)
		}
		if text := log.String(); strings.Count(text, "WARN") != 2 || strings.Count(text, "answers again") != 1 || strings.Count(text, "\n") != 3 {
			t.Errorf("the log:\n%s", text)
		}
	})
}

func TestRunEndsWithoutSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		Run(ctx, nil, nil, slog.New(slog.DiscardHandler))
		if ctx.Err() == nil {
			t.Error("it ended before the context")
		}
	})
}

func TestBoardReportsOnceAndWhenAllIsWithdrawn(t *testing.T) {
	var told []string
	b := noticeSet{valid: make(map[event]Notice), tell: func(n Notice) { told = append(told, n.Source+" "+string(n.Kind)+" "+n.ID) }}
	risk, end := Notice{Kind: Rebalance, ID: "1"}, Notice{Kind: Terminate, ID: "1"}
	for _, step := range []struct {
		source string
		now    []Notice
		want   []string
	}{
		{"a", nil, nil},
		{"a", []Notice{risk}, []string{"a rebalance 1"}},
		{"a", []Notice{risk}, nil},
		{"b", []Notice{risk}, []string{"b rebalance 1"}}, // ids are the source's own
		{"a", []Notice{end}, []string{"a terminate 1"}},
		{"b", nil, nil},
		{"a", []Notice{{Kind: Terminate, ID: "2"}}, []string{"a terminate 2"}}, // another event replaces it: nothing is withdrawn
		{"b", nil, nil},
		{"a", nil, []string{"a withdrawn 2"}},
		{"a", []Notice{end}, []string{"a terminate 1"}},
	} {
		told = nil
		b.set(step.source, step.now)
		if diff := cmp.Diff(step.want, told); diff != "" {
			t.Errorf("%s says %+v:\n%s", step.source, step.now, diff)
		}
	}
}
