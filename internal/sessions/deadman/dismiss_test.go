package deadman

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
)

// A container of a pool that the engine removes late costs a wait, and no error. The
// deadman keeps one that the engine does not remove.
func TestDismiss(t *testing.T) {
	for late, dismissed := range map[int]bool{0: true, 3: true, 1000: false} {
		synctest.Test(t, func(t *testing.T) {
			holds := late
			standDown := func() error {
				if holds > 0 {
					return fmt.Errorf("stand the deadman down: %w", ErrHolds)
				}
				return nil
			}
			err := Dismiss(t.Context(), standDown, func(context.Context) { holds-- }, slog.New(slog.DiscardHandler))
			if err != nil || (holds == 0) != dismissed {
				t.Errorf("a container that is removed at try %d: %v, %d tries remain", late, err, holds)
			}
		})
	}
}
