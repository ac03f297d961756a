package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A drain makes room for one that has less time, and for no other.
func TestDrainMakesRoom(t *testing.T) {
	for name, c := range map[string]struct{ first, second, want time.Duration }{
		"for a notice": {10 * time.Minute, 30 * time.Second, 15 * time.Second},
		"for none":     {30 * time.Second, 10 * time.Minute, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h hurry
				begun := time.Now()
				ctx, over := h.begin(t.Context(), begun.Add(c.first))
				arrived := h.press(begun.Add(c.second))
				select {
				case <-ctx.Done():
				case <-time.After(c.first):
				}
				if took := time.Since(begun); took != c.want {
					t.Errorf("it had %v, want %v", took, c.want)
				}
				if why := context.Cause(ctx); errors.Is(why, errHurry) != (c.want < c.first) {
					t.Errorf("it ended with %v", why)
				}
				over()
				arrived()
				h.press(begun)() // there is none under way
			})
		})
	}
}

// One that has ended in time is not cut short afterwards.
func TestPressEndsWithItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hurry
		_, over := h.begin(t.Context(), time.Now().Add(time.Hour))
		arrived := h.press(time.Now().Add(time.Minute))
		over()
		arrived()
		next, end := h.begin(t.Context(), time.Now().Add(time.Minute))
		defer end()
		time.Sleep(time.Minute)
		if next.Err() != nil {
			t.Error("the next one was cut short")
		}
	})
}
