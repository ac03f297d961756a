package cure

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"holdfast/internal/platform/linux/cgroup"
)

// A cure ends when the group's memory moves to swap space, on either version of control groups.
func TestSwapEndsACure(t *testing.T) {
	for name, c := range map[string]struct {
		v2         bool
		file, text string
	}{
		"v1": {false, "memory.stat", "swap 0\ntotal_swap "},
		"v2": {true, "memory.swap.current", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := cgroup.Group{Point: t.TempDir(), Path: "/", V2: c.v2}
			swapped := func(n int) {
				if err := os.WriteFile(filepath.Join(g.Point, c.file), []byte(c.text+strconv.Itoa(n)+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			swapped(100 << 20)
			w := watchSwap(g)
			none := func() error { return nil }
			if err := w.guarded(t.Context(), time.Millisecond, none, func(context.Context) error {
				swapped(110 << 20)
				time.Sleep(20 * time.Millisecond)
				return nil
			}); err != nil {
				t.Errorf("a little: %v", err)
			}
			if err := w.guarded(t.Context(), time.Millisecond, none, func(ctx context.Context) error {
				swapped(120 << 20)
				<-ctx.Done()
				return ctx.Err()
			}); !errors.Is(err, errSwap) || cause(err) == "" {
				t.Errorf("much: %v", err)
			}
		})
	}
	if none := watchSwap(cgroup.Group{Point: t.TempDir(), Path: "/", V2: true}); none.swaps() {
		t.Error("without swap accounting a cure would end")
	}
}
