package gc

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/platform/engine"
)

var noon = time.Unix(1_700_000_000, 0)

func image(id string, used time.Duration, refs []string, layers ...string) Image {
	return Image{Image: engine.Image{ID: id, Refs: refs, Created: noon.Add(-used)}, Layers: layers, LastUse: noon.Add(-used)}
}

func ids(p Proposal) []string {
	list := []string{}
	for _, d := range p.Deletions {
		list = append(list, d.ID)
	}
	return list
}

func expect(t *testing.T, s State, c Config, want ...string) Proposal {
	t.Helper()
	s.Now = noon
	p := Plan(s, c)
	if want == nil {
		want = []string{}
	}
	if got := ids(p); !slices.Equal(got, want) {
		t.Errorf("planned %v, want %v", got, want)
	}
	return p
}

// sized returns a state with four images of 100 bytes each, the oldest first. The images
// a and b share a layer of 60 bytes.
func sized() State {
	return State{
		Images: []Image{
			image("a", 50*time.Hour, []string{"app:1"}, "base", "a"),
			image("b", 40*time.Hour, []string{"app:2"}, "base", "b"),
			image("c", 30*time.Hour, []string{"other:1"}, "c"),
			image("d", 30*time.Minute, []string{"other:2"}, "d"),
		},
		LayerSize: map[string]int64{"base": 60, "a": 40, "b": 40, "c": 100, "d": 100},
		Disk:      Disk{Total: 1000, Free: 100},
	}
}

func policy(rules ...Rule) Config {
	c := DefaultConfig()
	c.Rules = rules
	return c
}

func TestPressureStopsAtTheLowMark(t *testing.T) {
	// 900 of 1000 are used; 750 is the low mark: a frees 40, b then 100, which
	// is not enough.
	p := expect(t, sized(), policy(Rule{Kinds: []Kind{Images}, Pressure: true}), "a", "b", "c")
	if p.Deletions[0].Bytes != 40 || p.Deletions[1].Bytes != 100 || p.Bytes != 240 || p.Level != Pressed {
		t.Errorf("%+v", p)
	}
	full := sized()
	full.Disk.Free = 0
	if p := expect(t, full, policy(Rule{Kinds: []Kind{Images}, Pressure: true}), "a", "b", "c"); len(p.Notices) != 1 {
		t.Errorf("240 bytes do not do, notices: %v", p.Notices)
	}
	if why := p.Deletions[0].Reason; !strings.Contains(why, "85%") || !strings.Contains(why, "2 days ago") {
		t.Errorf("reason %q", why)
	}
	s := sized()
	s.Disk.Free = 140 // 860: until 750 it takes a and b
	expect(t, s, policy(Rule{Kinds: []Kind{Images}, Pressure: true}), "a", "b")
	s.Disk.Free = 160 // under the high mark
	expect(t, s, policy(Rule{Kinds: []Kind{Images}, Pressure: true}))
	s.Disk = Disk{Total: 1000, Free: 900, Inodes: 100, FreeInodes: 10}
	expect(t, s, policy(Rule{Kinds: []Kind{Images}, Pressure: true}), "a", "b", "c")
}

func TestRulesStopWhereTheySay(t *testing.T) {
	images := []Kind{Images}
	for name, x := range map[string]struct {
		rule Rule
		want []string
	}{
		"all that is old":  {Rule{Kinds: images}, []string{"a", "b", "c"}},
		"keep_for":         {Rule{Kinds: images, KeepFor: 35 * time.Hour}, []string{"a", "b"}},
		"match":            {Rule{Kinds: images, Match: []string{"other:*"}}, []string{"c"}},
		"dangling":         {Rule{Kinds: images, Dangling: true}, nil},
		"max_used":         {Rule{Kinds: images, MaxUsed: Bytes(250)}, []string{"a", "b"}},
		"max_used reached": {Rule{Kinds: images, MaxUsed: Bytes(340)}, nil},
		"reserved":         {Rule{Kinds: images, Reserved: Bytes(220)}, []string{"a"}},
		"min_free":         {Rule{Kinds: images, MinFree: Bytes(130)}, []string{"a"}},
		"min_free in %":    {Rule{Kinds: images, MinFree: Percent(20)}, []string{"a", "b"}},
		"min_free there":   {Rule{Kinds: images, MinFree: Bytes(100)}, nil},
		"labels":           {Rule{Kinds: images, Labels: []string{"ci=yes"}}, nil},
	} {
		t.Run(name, func(t *testing.T) { expect(t, sized(), policy(x.rule), x.want...) })
	}
	// Images without the label do not count.
	one := sized()
	one.Images[0].Labels = map[string]string{"ci": "yes"}
	expect(t, one, policy(Rule{Kinds: images, Labels: []string{"ci"}, MaxUsed: Bytes(150)}))
	expect(t, one, policy(Rule{Kinds: images, Labels: []string{"ci"}, MaxUsed: Bytes(99)}), "a")
	expect(t, one, policy(Rule{Kinds: images, Labels: []string{"ci"}, Reserved: Bytes(100)}))
	s := sized()
	s.Disk.Inodes, s.Disk.FreeInodes = 1000, 10
	expect(t, s, policy(Rule{Kinds: images, MinFreeInodes: Percent(5)}), "a", "b", "c")
}

// TestNothingIsWantedOfAnUnknownDisk: the disk of an engine on another host, and a file
// system that does not count inodes, such as btrfs.
func TestNothingIsWantedOfAnUnknownDisk(t *testing.T) {
	images := []Kind{Images}
	for name, r := range map[string]Rule{
		"pressure":             {Kinds: images, Pressure: true},
		"min_free":             {Kinds: images, MinFree: Bytes(10 << 30)},
		"min_free in %":        {Kinds: images, MinFree: Percent(20)},
		"min_free_inodes":      {Kinds: images, MinFreeInodes: Bytes(1000)},
		"min_free_inodes in %": {Kinds: images, MinFreeInodes: Percent(5)},
		"max_used in %":        {Kinds: images, MaxUsed: Percent(50)},
		"reserved in %":        {Kinds: images, Reserved: Percent(50)},
	} {
		t.Run(name, func(t *testing.T) {
			s := sized()
			s.Disk = Disk{}
			expect(t, s, policy(r))
		})
	}
	s := sized()
	s.Disk = Disk{}
	expect(t, s, policy(Rule{Kinds: images, MaxUsed: Bytes(250)}), "a", "b") // the sizes of images are known without the disk
	s = sized()                                                              // no inodes are counted
	expect(t, s, policy(Rule{Kinds: images, MinFreeInodes: Bytes(1000)}))
	expect(t, s, policy(Rule{Kinds: images, MinFree: Bytes(130), MinFreeInodes: Bytes(1000)}), "a")
}

func TestWhatStays(t *testing.T) {
	all := Rule{Kinds: []Kind{Images}}
	s, c := sized(), policy(all)
	c.Keep = []string{"app:*"}
	expect(t, s, c, "c")
	c = policy(all)
	c.KeepNewest = 1 // app:2 and other:2 were built last
	expect(t, s, c, "a", "c")
	s.Images[0].Labels = map[string]string{"team": "x"}
	c = policy(all)
	c.Protect = []string{"team=x"}
	expect(t, s, c, "b", "c")
	s.Images[1].Labels = map[string]string{"holdfast.keep": ""}
	expect(t, s, c, "c")
	// Uses may have been missed until just before now.
	s.Blind = noon.Add(-time.Minute)
	expect(t, s, c)
}

func TestParentsGoAfterTheirChildren(t *testing.T) {
	s := State{Images: []Image{
		image("parent", 50*time.Hour, []string{"p:1"}, "p"),
		image("child", 40*time.Hour, []string{"c:1"}, "p", "c"),
	}}
	s.Images[1].Parent = "parent"
	expect(t, s, policy(Rule{Kinds: []Kind{Images}}), "child", "parent")
	expect(t, s, policy(Rule{Kinds: []Kind{Images}, Match: []string{"p:*"}}))
}

func container(id, state, image string, used time.Duration, networks ...string) Container {
	return Container{
		Holder:  engine.Holder{ID: id, Name: "name-" + id, State: state, ImageID: image, Networks: networks},
		LastUse: noon.Add(-used),
	}
}

func TestContainersAndNetworks(t *testing.T) {
	network := func(id string, age time.Duration) Network {
		return Network{engine.Network{ID: id, Name: "net-" + id}, noon.Add(-age)}
	}
	s := State{
		Images: []Image{image("a", 50*time.Hour, []string{"app:1"}, "a")},
		Containers: []Container{
			container("ended", "exited", "a", 30*time.Hour, "net-of-ended"),
			container("new", "created", "x", 10*time.Minute, "net-of-new"),
			container("never", "created", "x", 30*time.Hour),
			container("up", "running", "x", 0, "of-up"),
		},
		Networks: []Network{
			network("of-ended", 40*time.Hour), network("of-new", 40*time.Hour), network("of-up", 40*time.Hour),
			network("leaked", 39*time.Hour), network("young", time.Minute), {Network: engine.Network{ID: "bridge", Name: "bridge", Fixed: true}},
		},
	}
	expect(t, s, policy(Rule{Kinds: []Kind{Networks}}), "leaked")
	expect(t, s, policy(Rule{Kinds: []Kind{Stopped}}), "ended")
	expect(t, s, policy(Rule{Kinds: []Kind{Created}}), "never")
	expect(t, s, policy(Rule{Kinds: []Kind{Images}}))
	// The removal of a container frees its image and its network.
	p := expect(t, s, policy(Rule{Kinds: []Kind{Stopped}}, Rule{Kinds: []Kind{Images, Networks}}), "ended", "a", "of-ended", "leaked")
	if p.Unknown != 2 { // what the container wrote, and the image's layer
		t.Errorf("%d of unknown size", p.Unknown)
	}
}

func TestVolumesOnlyWhenAskedFor(t *testing.T) {
	s := State{
		Volumes: []Volume{
			{engine.Volume{Name: "data", Driver: "local"}, noon.Add(-100 * time.Hour)},
			{engine.Volume{Name: "used", Driver: "local"}, noon.Add(-100 * time.Hour)},
			{engine.Volume{Name: "far", Driver: "nfs"}, noon.Add(-100 * time.Hour)},
		},
		Containers: []Container{{Holder: engine.Holder{ID: "c", State: "exited", Volumes: []string{"used"}}, LastUse: noon}},
		Disk:       Disk{Total: 100, Free: 1},
	}
	expect(t, s, DefaultConfig())
	expect(t, s, policy(Rule{Kinds: []Kind{Volumes}}), "data")
}

func TestDefaultsTakeOnlyWhatLeaksWithoutPressure(t *testing.T) {
	s := sized()
	s.Disk.Free = 900
	s.Networks = []Network{{engine.Network{ID: "n", Name: "n"}, noon.Add(-2 * time.Hour)}}
	s.Containers = []Container{container("ended", "exited", "a", 100*time.Hour)}
	s.Builder = true
	expect(t, s, DefaultConfig(), "n")
}

// TestDefaultsLeaveContainersThatRan: such containers and their images also stay on a full
// disk, because the data of the containers cannot be restored.
func TestDefaultsLeaveContainersThatRan(t *testing.T) {
	s := sized()
	s.Disk.Free = 0
	s.Containers = []Container{container("ended", "exited", "a", 100*time.Hour), container("never", "created", "x", 100*time.Hour)}
	expect(t, s, DefaultConfig(), "never", "b", "c")
}

func TestOnACriticalDiskTheSmallestHarmGoesFirst(t *testing.T) {
	list := []Deletion{
		{Kind: Images, ID: "big", Bytes: 1000}, {Kind: Images, ID: "nothing"}, {Kind: Images, ID: "small", Bytes: 10},
		{Kind: Stopped, ID: "container", Bytes: -1}, {Kind: Networks, ID: "network"},
	}
	var order []string
	for len(list) > 0 {
		i := next(list, true)
		order = append(order, list[i].ID)
		list = slices.Delete(list, i, i+1)
	}
	if got := strings.Join(order, " "); got != "network container small big nothing" {
		t.Error(got)
	}
}

func TestChainIDs(t *testing.T) {
	// printf 'sha256:aa sha256:bb' | sha256sum
	want := []string{"sha256:aa", "sha256:b68ad689d6d1ec110ea1c13617437ad6f3766d4b3b309f6a603a222e07a0164f"}
	if got := ChainIDs([]string{"sha256:aa", "sha256:bb"}); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestPatterns(t *testing.T) {
	for _, x := range []struct {
		pattern, name string
		want          bool
	}{
		{"app:1", "app:1", true}, {"app:1", "app:12", false}, {"*", "any/thing:1", true},
		{"reg/*", "reg/a/b:1", true}, {"*:prod", "x:prod", true}, {"*:prod", "x:production", false},
		{"a*b*c", "a-b-c", true}, {"a*b*c", "a-c-b", false}, {"ab*ba", "aba", false}, {"a**", "a", true},
	} {
		if matches(x.pattern, x.name) != x.want {
			t.Errorf("%q on %q: %v", x.pattern, x.name, !x.want)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for i, r := range DefaultRules() {
		if err := r.validate(); err != nil {
			t.Errorf("default rule %d: %v", i, err)
		}
	}
	for what, change := range map[string]func(*Config){
		"every":           func(c *Config) { c.Every = time.Millisecond },
		"low":             func(c *Config) { c.Low = Percent(90) },
		"high":            func(c *Config) { c.High = Amount{} },
		"min_age":         func(c *Config) { c.MinAge = -1 },
		"protect":         func(c *Config) { c.Protect = []string{""} },
		"kinds":           func(c *Config) { c.Rules = []Rule{{}} },
		"kinds: \"x\"":    func(c *Config) { c.Rules = []Rule{{Kinds: []Kind{"x"}}} },
		"keep_for":        func(c *Config) { c.Rules = []Rule{{Kinds: []Kind{Images}, KeepFor: -1}} },
		"dangling":        func(c *Config) { c.Rules = []Rule{{Kinds: []Kind{Volumes}, Dangling: true}} },
		"reserved":        func(c *Config) { c.Rules = []Rule{{Kinds: []Kind{Volumes}, Reserved: Bytes(1)}} },
		"max_used":        func(c *Config) { c.Rules = []Rule{{Kinds: []Kind{BuildCache}, MaxUsed: Bytes(1)}} },
		"min_free_inodes": func(c *Config) { c.Rules = []Rule{{Kinds: []Kind{Images}, MinFreeInodes: Bytes(1 << 50)}} },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAmounts(t *testing.T) {
	for text, want := range map[string]int64{"85%": 850, "0.5%": 5, "1KiB": 1024, "12": 12} {
		a, err := ParseAmount(text)
		if err != nil || a.Of(1000) != want {
			t.Errorf("%s of 1000 is %d, %v", text, a.Of(1000), err)
		}
	}
	for _, text := range []string{"", "101%", "-1%", "NaN%", "much", "-5"} {
		if a, err := ParseAmount(text); err == nil {
			t.Errorf("%q is %v", text, a)
		}
	}
}

// TestLargeHost plans for as many objects as a busy host has.
func TestLargeHost(t *testing.T) {
	p := Plan(largeHost(3000, 500), policy(Rule{Kinds: []Kind{Images}}))
	if len(p.Deletions) != 2500 {
		t.Errorf("%d deletions", len(p.Deletions))
	}
}

// BenchmarkPlan is for 3,000 images and 500 containers.
func BenchmarkPlan(b *testing.B) {
	s := largeHost(3000, 500)
	c := DefaultConfig()
	c.Rules = []Rule{{Kinds: []Kind{Networks, Stopped, Created}}, {Kinds: []Kind{Images}, Pressure: true}}
	b.ReportAllocs()
	for b.Loop() {
		Plan(s, c)
	}
}

// largeHost has images of ten layers, of which five are shared, and containers
// that each have one image.
func largeHost(images, containers int) State {
	s := State{Now: noon, Disk: Disk{Total: 1 << 40, Free: 1 << 30}, LayerSize: map[string]int64{}}
	for i := range images {
		var layers []string
		for l := range 10 {
			name := fmt.Sprintf("sha256:%064d", i*100+l)
			if l < 5 {
				name = fmt.Sprintf("sha256:base%d-%d", i%50, l)
			}
			layers = append(layers, name)
			s.LayerSize[name] = int64(1+l) << 20
		}
		s.Images = append(s.Images, image(fmt.Sprintf("sha256:image%d", i), time.Duration(100+i)*time.Hour, []string{fmt.Sprintf("repo%d:%d", i%100, i)}, layers...))
	}
	for i := range containers {
		s.Containers = append(s.Containers, container(fmt.Sprint(i), "running", s.Images[i*images/containers].ID, 0, "bridge"))
	}
	return s
}

// TestNothingOfThePoolsIsTaken: rules that match all objects do not remove containers that
// hold networks, warm containers, or the image of the former. The agent removes such
// containers when they are dead.
func TestNothingOfThePoolsIsTaken(t *testing.T) {
	s, all := sized(), policy(Rule{Kinds: []Kind{Images, Stopped, Created}})
	expect(t, s, all, "a", "b", "c")
	for i, label := range []string{"holdfast.holder", "holdfast.warm", "holdfast.session"} {
		s.Images[i].Labels = map[string]string{label: "image"}
		for _, state := range []string{"created", "exited", "dead"} {
			c := container("", "", "", 50*time.Hour)
			c.ID, c.State, c.Labels = label+state, state, map[string]string{label: "n1"}
			s.Containers = append(s.Containers, c)
		}
	}
	expect(t, s, all)
}
