package agent

import (
	"testing"

	"holdfast/internal/platform/linux/hostload"
	"holdfast/internal/sessions/warmpool"
)

func TestPressureOfMemory(t *testing.T) {
	for _, c := range []struct {
		m    hostload.Memory
		want warmpool.Pressure
	}{
		{hostload.Memory{}, warmpool.NoPressure},
		{hostload.Memory{Total: 100, Available: 15}, warmpool.NoPressure},
		{hostload.Memory{Total: 100, Available: 14}, warmpool.Tight},
		{hostload.Memory{Total: 100, Available: 7}, warmpool.Tight},
		{hostload.Memory{Total: 100, Available: 6}, warmpool.Short},
		{hostload.Memory{Total: 100}, warmpool.Short},
	} {
		if got := pressureOf(c.m); got != c.want {
			t.Errorf("%+v is %d, want %d", c.m, got, c.want)
		}
	}
}
