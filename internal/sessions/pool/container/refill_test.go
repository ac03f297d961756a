package container

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// TestRefill: no container is created beside a boot, on a host that is short of
// memory, or while the node accepts no session. In the last case waiting containers
// are ended. Containers of a replaced image are replaced.
func TestRefill(t *testing.T) {
	if testing.Short() && os.Geteuid() != 0 {
		t.Skip("-short without root: control groups need root")
	}
	const most = 3
	var busy, closed atomic.Bool
	pressure := NoPressure
	f := newFake()
	p := fakePool(t, f, t.TempDir(), most, Deps{
		Busy: busy.Load, Wanted: func() bool { return !closed.Load() }, Pressure: func() Pressure { return pressure },
	})
	defer f.close(p.deps.Killer, p.deps.Opener)
	p.setOpen(true)
	// settle does all work that is due now, with the checks of pressure and images.
	settle := func(want int, when string) {
		t.Helper()
		p.looked, p.images = time.Time{}, time.Time{}
		for p.tend(t.Context()) {
		}
		if n := p.Counts()[0].Ready; n != want {
			t.Errorf("%s: %d are ready, not %d", when, n, want)
		}
	}
	settle(most, "at first")
	used := p.Take("web")
	if used == nil {
		t.Fatal("none is ready")
	}
	busy.Store(true)
	settle(most-1, "while a session boots")
	busy.Store(false)
	p.idleNode.Now()
	time.Sleep(time.Millisecond) // longer than Idle.Least
	pressure = Tight
	settle(most-1, "with little memory")
	pressure = NoPressure
	settle(most, "with enough again")
	pressure = Short
	settle(most-1, "with hardly any memory")
	settle(most-2, "and some seconds later")
	if p.tend(t.Context()) {
		t.Error("it does not wait for the effect")
	}
	pressure = NoPressure
	settle(most, "with enough again")
	before := f.ids()
	f.set(func() { f.image = "two" })
	settle(most, "with another image")
	for _, id := range before[len(before)-most:] {
		if c, err := f.Inspect(t.Context(), id); err == nil {
			t.Errorf("%s of the previous image still exists", c.Name)
		}
	}
	closed.Store(true)
	settle(0, "while no session may come")
	closed.Store(false)
	settle(most, "when they may again")
	if err := errors.Join(p.endAll(t.Context(), []*Container{used}), p.End(t.Context())); err != nil || len(f.ids()) > 0 {
		t.Errorf("left: %v, %v", f.ids(), err)
	}
}
