package agent

import (
	"testing"

	"holdfast/internal/platform/linux/hostload"
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
