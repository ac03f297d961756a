package run

import (
	"log/slog"
	"testing"

	"holdfast/internal/platform/linux/proc"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// children returns the running children of a process.
func children(t *testing.T, pid int) []int {
	t.Helper()
	pids, err := proc.Host.Pids()
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, p := range pids {
		if s, err := proc.Host.Stat(p); err == nil && s.PPid == pid && s.State != 'Z' {
			out = append(out, p)
		}
	}
	return out
}
