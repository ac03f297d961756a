package gc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// dead is an engine with stopped containers, which counts the calls.
type dead struct {
	Engine
	holders  []engine.Holder
	finished map[string]time.Time
	calls    int
}

func (d *dead) Holders(context.Context) ([]engine.Holder, error) { d.calls++; return d.holders, nil }

func (d *dead) Images(context.Context) ([]engine.Image, error) { d.calls++; return nil, nil }

func (d *dead) Inspect(_ context.Context, id string) (engine.Container, error) {
	d.calls++
	at, ok := d.finished[id]
	if !ok {
		return engine.Container{}, fmt.Errorf("%s: %w", id, holdfast.ErrNotFound)
	}
	return engine.Container{ID: id, FinishedAt: at}, nil
}

// A host with 2,000 stopped containers costs the engine two lists in each cycle, not a call
// for each container.
func TestManyStoppedContainers(t *testing.T) {
	const n = 2000
	now := time.Now()
	d := &dead{finished: map[string]time.Time{}}
	for i := range n {
		id := fmt.Sprint(i)
		d.finished[id] = now.Add(-time.Hour)
		d.holders = append(d.holders, engine.Holder{ID: id, State: "exited", Created: now.Add(-2 * time.Hour)})
	}
	r := newReader(d)
	read := func() State {
		t.Helper()
		d.calls = 0
		s, err := r.read(t.Context(), nil, Uses{}, nil, Disk{}, now)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := read(); len(s.Containers) != n || !s.Containers[0].LastUse.Equal(now.Add(-time.Hour)) {
		t.Fatalf("%d containers", len(s.Containers))
	}
	now = now.Add(time.Minute)
	if s := read(); len(s.Containers) != n || d.calls != 2 {
		t.Errorf("the second cycle: %d containers, %d calls", len(s.Containers), d.calls)
	}

	// A container that runs again, and ends, is seen when it was seen running, and else after
	// a while. One that is removed leaves nothing.
	d.finished["0"], d.finished["1"] = now, now
	d.holders[0].State = "running"
	read()
	d.holders[0].State = "exited"
	s := read()
	if !s.Containers[0].LastUse.Equal(now) || d.calls != 3 {
		t.Errorf("after another run: exited at %v, %d calls", s.Containers[0].LastUse, d.calls)
	}
	at := now
	now = now.Add(exitAge)
	d.holders = d.holders[:2]
	if s := read(); !s.Containers[1].LastUse.Equal(at) || len(r.exits) != 2 {
		t.Errorf("after a while: exited at %v, %d known", s.Containers[1].LastUse, len(r.exits))
	}
}
