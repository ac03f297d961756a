package gc

import (
	"testing"
	"time"

	"holdfast/internal/platform/engine"
)

// inventory returns the objects of a list by their names.
func inventory(t *testing.T, s State, c Config) map[string]Object {
	t.Helper()
	s.Now = noon
	byName := map[string]Object{}
	for _, o := range List(s, c).Objects {
		if (o.Kept == "") == (o.Rule == "") {
			t.Errorf("%s is kept for %q, and goes by %q", o.Name, o.Kept, o.Rule)
		}
		byName[o.Name] = o
	}
	return byName
}

func keptFor(t *testing.T, all map[string]Object, want map[string]string) {
	t.Helper()
	for name, why := range want {
		if o := all[name]; o.Kept != why {
			t.Errorf("%s stays: %q, want %q (rule %q)", name, o.Kept, why, o.Rule)
		}
	}
}

func TestListSays(t *testing.T) {
	s := sized()
	s.Images = append(s.Images, image("e", 90*time.Hour, []string{"kept/x:1"}, "base", "e"), image("f", 90*time.Hour, nil, "base", "f"))
	s.Images[5].Labels = map[string]string{"holdfast.keep": ""}
	s.Images[1].Parent = "a"
	s.Containers = []Container{
		{Holder: engine.Holder{ID: "1", Name: "up", State: "running", ImageID: "c", Networks: []string{"front"}, Volumes: []string{"data"}}},
		{Holder: engine.Holder{ID: "2", Name: "over", State: "exited", ImageID: "d"}, LastUse: noon.Add(-5 * time.Hour)},
	}
	s.Networks = []Network{
		{Network: engine.Network{ID: "n1", Name: "bridge", Fixed: true}}, {Network: engine.Network{ID: "n2", Name: "front"}, LastUse: noon.Add(-90 * time.Hour)},
		{Network: engine.Network{ID: "n3", Name: "leaked"}, LastUse: noon.Add(-90 * time.Hour)},
	}
	s.Volumes = []Volume{
		{Volume: engine.Volume{Name: "data", Driver: "local"}}, {Volume: engine.Volume{Name: "far", Driver: "nfs"}}, {Volume: engine.Volume{Name: "spare", Driver: "local"}, LastUse: noon.Add(-time.Hour)},
	}
	c := policy(Rule{Name: "leaks", Kinds: []Kind{Networks}}, Rule{Name: "old", Kinds: []Kind{Images}, KeepFor: 45 * time.Hour}, Rule{Name: "rest", Kinds: []Kind{Images, Stopped}, Pressure: true})
	c.Keep = []string{"kept/*"}
	s.Disk.Free = 900
	all := inventory(t, s, c)
	keptFor(t, all, map[string]string{
		"app:1":    "image app:2 is built on it",
		"app:2":    "rest: the disk is not over 85%",
		"other:1":  "container up uses it (running)",
		"other:2":  "container over uses it (exited)",
		"kept/x:1": "gc.keep or the prefetch list has kept/*",
		"f":        "it has the label holdfast.keep",
		"up":       "it is running",
		"over":     "rest: the disk is not over 85%",
		"bridge":   "it is the engine's own",
		"front":    "container up uses it (running)",
		"data":     "container up uses it (running)",
		"far":      "its driver is nfs, not local",
		"spare":    "no rule is for it",
		"leaked":   "",
	})
	if o := all["leaked"]; o.Rule != "leaks" || o.LastUse.IsZero() {
		t.Errorf("%+v", o)
	}
	if o := all["app:1"]; o.Bytes != 40 || o.Shared != 60 {
		t.Errorf("%+v", o)
	}
	// Uses of volumes are not recorded without a rule.
	if o := all["spare"]; !o.LastUse.IsZero() || o.Bytes >= 0 {
		t.Errorf("%+v", o)
	}
	if all["up"].Kind != Running || len(all) != 14 {
		t.Errorf("%d objects: %+v", len(all), all)
	}
}

func TestListSaysWhatARuleWaitsFor(t *testing.T) {
	s := sized()
	c := policy(Rule{Name: "young", Kinds: []Kind{Images}, Match: []string{"app:*", "other:2"}, KeepFor: 45 * time.Hour})
	c.KeepNewest = 1
	all := inventory(t, s, c)
	keptFor(t, all, map[string]string{
		"app:1":   "",
		"app:2":   "it is one of the 1 newest of its repository",
		"other:1": "no rule is for it",
		"other:2": "it is one of the 1 newest of its repository",
	})
	c.KeepNewest = 0
	keptFor(t, inventory(t, s, c), map[string]string{"app:2": "young: last used 40 hours ago, needs 45 hours"})
	s.Blind = noon.Add(-time.Hour)
	keptFor(t, inventory(t, s, c), map[string]string{"app:1": "young: it may have been used until about an hour ago, needs 45 hours"})
	s.Blind = time.Time{}
	c = policy(Rule{Name: "some", Kinds: []Kind{Images}, MaxUsed: Bytes(250)})
	keptFor(t, inventory(t, s, c), map[string]string{"app:1": "", "other:1": "some: its limits are kept without it"})
}

// TestListAndPlanAgree: an object goes by the list exactly if the plan deletes it.
func TestListAndPlanAgree(t *testing.T) {
	for name, c := range map[string]Config{
		"default": DefaultConfig(), "all": policy(Rule{Kinds: Kinds()}), "pressure": policy(Rule{Kinds: []Kind{Images}, Pressure: true}),
	} {
		s := sized()
		s.Now = noon
		planned := map[string]bool{}
		for _, d := range Plan(s, c).Deletions {
			planned[d.ID] = true
		}
		for _, o := range List(s, c).Objects {
			if (o.Rule != "") != planned[o.ID] {
				t.Errorf("%s: %s goes by %q, planned: %v", name, o.Name, o.Rule, planned[o.ID])
			}
		}
		if len(planned) == 0 && name != "default" {
			t.Errorf("%s: nothing is planned", name)
		}
	}
}
