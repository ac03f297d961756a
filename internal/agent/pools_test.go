package agent

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"

	"holdfast/internal/platform/linux/hostload"
	"holdfast/internal/sessions/deadman"
	"holdfast/internal/sessions/pool/container"
)

func TestPressureOfMemory(t *testing.T) {
	for _, c := range []struct {
		m    hostload.Memory
		want container.Pressure
	}{
		{hostload.Memory{}, container.NoPressure},
		{hostload.Memory{Total: 100, Available: 15}, container.NoPressure},
		{hostload.Memory{Total: 100, Available: 14}, container.Tight},
		{hostload.Memory{Total: 100, Available: 7}, container.Tight},
		{hostload.Memory{Total: 100, Available: 6}, container.Short},
		{hostload.Memory{Total: 100}, container.Short},
	} {
		if got := pressureOf(c.m); got != c.want {
			t.Errorf("%+v is %d, want %d", c.m, got, c.want)
		}
	}
}

// A container of a pool that the engine removes late costs a wait, and no error. The
// deadman keeps one that the engine does not remove.
func TestDismissDeadman(t *testing.T) {
	for late, dismissed := range map[int]bool{0: true, 3: true, 1000: false} {
		synctest.Test(t, func(t *testing.T) {
			holds := late
			standDown := func() error {
				if holds > 0 {
					return fmt.Errorf("stand the deadman down: %w", deadman.ErrHolds)
				}
				return nil
			}
			err := dismissDeadman(t.Context(), standDown, func(context.Context) { holds-- }, slog.New(slog.DiscardHandler))
			if err != nil || (holds == 0) != dismissed {
				t.Errorf("a container that is removed at try %d: %v, %d tries remain", late, err, holds)
			}
		})
	}
}
