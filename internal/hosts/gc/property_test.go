package gc

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
)

// interleavings is the number of runs of a property, fewer with -short.
func interleavings(t *testing.T, n int, property func(*rapid.T)) {
	t.Helper()
	if !testing.Short() {
		checks := flag.Lookup("rapid.checks")
		before := checks.Value.String()
		if err := checks.Value.Set(fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
		defer checks.Value.Set(before)
	}
	rapid.Check(t, property)
}

// act does one action of a person or tool on an engine.
func act(t *rapid.T, m *model) {
	some := func(keys []string, what string) string {
		if len(keys) == 0 {
			return ""
		}
		return rapid.SampledFrom(keys).Draw(t, what)
	}
	ref := func() string {
		return fmt.Sprintf("repo%d:%d", rapid.IntRange(0, 3).Draw(t, "repo"), rapid.IntRange(0, 3).Draw(t, "tag"))
	}
	switch rapid.SampledFrom([]string{"pull", "build", "tag", "create", "start", "stop", "network", "time"}).Draw(t, "act") {
	case "pull":
		var layers []string
		for i := range rapid.IntRange(1, 4).Draw(t, "layers") {
			layers = append(layers, fmt.Sprintf("%d-%d", i, rapid.IntRange(0, 1).Draw(t, "layer")))
		}
		m.pull(ref(), chained(layers), "")
	case "build":
		if parent := some(sortedKeys(m.images), "parent"); parent != "" {
			layers := append(slices.Clone(m.images[parent].Layers), m.id("layer"))
			m.pull(ref(), layers, parent)
		}
	case "tag":
		m.tag(ref(), some(sortedKeys(m.images), "image"))
	case "create":
		m.create(some(sortedKeys(m.images), "image"), some(append(sortedKeys(m.networks), ""), "network"))
	case "start":
		m.start(some(sortedKeys(m.containers), "container"))
	case "stop":
		m.stop(some(sortedKeys(m.containers), "container"))
	case "network":
		m.addNetwork()
	case "time":
		m.now = m.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "minutes")) * time.Minute)
	}
}

// chained makes names like chain ids: each includes all layers below it.
func chained(layers []string) []string {
	for i := 1; i < len(layers); i++ {
		layers[i] = layers[i-1] + "/" + layers[i]
	}
	return layers
}

// drawConfig draws a policy that removes many objects.
func drawConfig(t *rapid.T) Config {
	c := DefaultConfig()
	c.MinAge = time.Duration(rapid.IntRange(0, 60).Draw(t, "min age")) * time.Minute
	c.KeepNewest = rapid.IntRange(0, 2).Draw(t, "keep newest")
	if rapid.Bool().Draw(t, "keep") {
		c.Keep = []string{"repo0:*"}
	}
	c.Rules = []Rule{
		{Kinds: []Kind{Networks}, KeepFor: time.Duration(rapid.IntRange(0, 60).Draw(t, "network age")) * time.Minute},
		{Kinds: []Kind{Stopped, Created}},
		{Kinds: []Kind{Images}},
	}
	for i := range c.Rules {
		c.Rules[i].Pressure = rapid.Bool().Draw(t, "pressure")
	}
	if rapid.Bool().Draw(t, "no containers") {
		c.Rules = slices.Delete(c.Rules, 1, 2)
	}
	return c
}

// TestPlanNeverDeletesWhatIsInUse carries out a plan on the model after any history, one
// deletion after the other.
func TestPlanNeverDeletesWhatIsInUse(t *testing.T) {
	interleavings(t, labtest.Count(2_500, 10_000), func(t *rapid.T) {
		m := newModel(time.Unix(1_700_000_000, 0))
		c := drawConfig(t)
		for range rapid.IntRange(1, 3).Draw(t, "cycles") {
			for range rapid.IntRange(5, 25).Draw(t, "acts") {
				act(t, m)
			}
			s := m.state()
			s.Disk = Disk{Total: 100_000, Free: int64(rapid.IntRange(0, 100_000).Draw(t, "free"))}
			before := m.size()
			p := Plan(s, c)
			for _, d := range p.Deletions {
				checkDeletion(t, m, c, d)
				carryOut(t, m, d)
			}
			if len(m.wrong) > 0 {
				t.Fatalf("in use: %v", m.wrong)
			}
			if got := before - m.size(); got != p.Bytes {
				t.Fatalf("the plan frees %d bytes, it said %d", got, p.Bytes)
			}
		}
	})
}

// checkDeletion compares one deletion with the policy.
func checkDeletion(t *rapid.T, m *model, c Config, d Deletion) {
	if age := m.now.Sub(d.LastUse); age < c.MinAge {
		t.Fatalf("%s %s was used %v ago", d.Kind, d.Name, age)
	}
	if d.Reason == "" || d.Rule == "" {
		t.Fatalf("%s %s goes for no reason", d.Kind, d.Name)
	}
	if d.Kind != Images {
		return
	}
	if anyMatches(c.Keep, d.Refs) {
		t.Fatalf("image with names %v is to be kept", d.Refs)
	}
	for _, img := range m.images {
		if img.Parent == d.ID {
			t.Fatalf("image %s is the parent of %s", d.ID, img.ID)
		}
	}
	if !slices.Equal(m.images[d.ID].Refs, d.Refs) {
		t.Fatalf("image %s has the names %v, the plan says %v", d.ID, m.images[d.ID].Refs, d.Refs)
	}
}

func carryOut(t *rapid.T, m *model, d Deletion) {
	ctx := context.Background()
	var err error
	switch d.Kind {
	case Images:
		for _, ref := range d.Refs {
			if err == nil {
				err = m.RemoveImage(ctx, ref)
			}
		}
		if len(d.Refs) == 0 {
			err = m.RemoveImage(ctx, d.ID)
		}
	case Networks:
		err = m.RemoveUnusedNetwork(ctx, d.ID)
	case Stopped, Created:
		err = m.RemoveStopped(ctx, d.ID)
	default:
		t.Fatalf("%s was planned", d.Kind)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", d.Kind, d.Name, err)
	}
}

// TestCycleBesideOthers lets other clients act before every query of a collector. The
// collector never removes an object in use.
func TestCycleBesideOthers(t *testing.T) {
	dir := t.TempDir()
	interleavings(t, 300, func(t *rapid.T) {
		m := newModel(time.Now().Add(-1000 * time.Hour))
		c := drawConfig(t)
		c.MinAge = 0
		for i := range c.Rules {
			c.Rules[i].Pressure = false
		}
		for range rapid.IntRange(10, 40).Draw(t, "acts") {
			act(t, m)
		}
		acts := 60 // the limit, so that the cycle ends
		m.between = func(m *model) {
			if acts--; acts > 0 && rapid.Bool().Draw(t, "another client acts") {
				act(t, m)
			}
		}
		store := NewStore(fmt.Sprintf("%s/%d", dir, rapid.Uint64().Draw(t, "store")), slog.New(slog.DiscardHandler))
		store.file.NoSync = true
		past := Uses{Last: map[string]time.Time{}}
		for id := range m.images {
			past.Last[id] = m.now.Add(-time.Hour)
		}
		if err := store.Note(past); err != nil {
			t.Fatal(err)
		}
		col := New(c, Deps{
			Engine: m, Store: store, LockDir: dir, Log: slog.New(slog.DiscardHandler),
			Disk: func(string) (Disk, error) { return Disk{}, errElsewhere },
		})
		cy, err := col.Collect(context.Background(), ByRequest, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.wrong) > 0 {
			t.Fatalf("in use: %v", m.wrong)
		}
		if !cy.Ended || cy.Planned < len(cy.Deleted)+len(cy.Skipped) {
			t.Fatalf("%d planned, %d deleted, %d skipped, ended: %v", cy.Planned, len(cy.Deleted), len(cy.Skipped), cy.Ended)
		}
	})
}

var errElsewhere = engine.ErrRefused // any error: the model's data is nowhere
