package agent

import (
	"testing"

	"holdfast"
	"holdfast/internal/sessions/warmpool"
)

func TestPressureOfMemory(t *testing.T) {
	for _, c := range []struct {
		m    holdfast.Memory
		want warmpool.Pressure
	}{
		{holdfast.Memory{}, warmpool.NoPressure},
		{holdfast.Memory{Total: 100, Available: 15}, warmpool.NoPressure},
		{holdfast.Memory{Total: 100, Available: 14}, warmpool.Tight},
		{holdfast.Memory{Total: 100, Available: 7}, warmpool.Tight},
		{holdfast.Memory{Total: 100, Available: 6}, warmpool.Short},
		{holdfast.Memory{Total: 100}, warmpool.Short},
	} {
		if got := pressureOf(c.m); got != c.want {
			t.Errorf("%+v is %d, want %d", c.m, got, c.want)
		}
	}
}
