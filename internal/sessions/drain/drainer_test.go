package drain

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A running drain is cut short for a drain with less time only.
func TestPreemptionOfADrain(t *testing.T) {
	for name, c := range map[string]struct{ first, second, want time.Duration }{
		"for a notice": {10 * time.Minute, 30 * time.Second, 15 * time.Second},
		"for none":     {30 * time.Second, 10 * time.Minute, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p preemption
				begun := time.Now()
				ctx, over := p.begin(t.Context(), begun.Add(c.first))
				arrived := p.request(begun.Add(c.second))
				select {
				case <-ctx.Done():
				case <-time.After(c.first):
				}
				if took := time.Since(begun); took != c.want {
					t.Errorf("the first drain had %v, want %v", took, c.want)
				}
				if why := context.Cause(ctx); errors.Is(why, errPreempted) != (c.want < c.first) {
					t.Errorf("the first drain ended with %v", why)
				}
				over()
				arrived()
				p.request(begun)() // no drain runs
			})
		})
	}
}

// A request has no effect after its drain has its turn.
func TestRequestEndsWithItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p preemption
		_, over := p.begin(t.Context(), time.Now().Add(time.Hour))
		arrived := p.request(time.Now().Add(time.Minute))
		over()
		arrived()
		next, end := p.begin(t.Context(), time.Now().Add(time.Minute))
		defer end()
		time.Sleep(time.Minute)
		if next.Err() != nil {
			t.Error("the next drain was cut short")
		}
	})
}
