package cure_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/test/lab/labtest"
	"holdfast/test/vm"
	"holdfast/test/vm/vmtest"
)

// The same tests on a kernel with v2 only.
func TestInMachine(t *testing.T) {
	labtest.NeedLong(t, "an emulated machine; the same tests run on this kernel")
	c := vm.Config{Memory: 1536}
	vmtest.AddDisk(t, &c)
	vmtest.Run(t, "^(TestSqueeze|TestLocked|TestPinned|TestSelf|TestDentries)$", c)
}

// deadGroups returns the number of groups for a test, given the number for a real
// machine. Moving a process to another group is slow on an emulated machine.
func deadGroups(real int) int {
	if vmtest.Inside() {
		return min(150, real)
	}
	return real
}

// The dying groups are freed, and the page cache of living groups stays.
func TestSqueeze(t *testing.T) {
	groups := deadGroups(1000)
	during(t, "zombies", groups, func(at drill.Running) {
		resident := livePages(t, newGroup(t, at.Group+"/cache"), 64)
		before := resident()
		e := env(t)
		looked, err := cure.Memcg(at.Group).Run(t.Context(), e, cure.Options{})
		if err != nil || looked.Applied || len(looked.Plan.Does) < 2 || looked.Plan.Bytes < int64(groups*os.Getpagesize())*9/10 {
			t.Errorf("dry run: %+v, %v", looked, err)
		}
		r := apply(t, e, cure.Memcg(at.Group))
		f := figure(t, r, "page cache of dying")
		if f.Before < float64(groups*os.Getpagesize())*0.9 || f.After > 0.1*f.Before {
			t.Errorf("less than 90 %% was freed: %+v", f)
		}
		if after := resident(); before < 60<<20 || float64(before-after) > 0.05*float64(before) {
			t.Errorf("of %d bytes of live page cache %d are left", before, after)
		}
		list, err := e.Journal.List(0)
		if err != nil || len(list) != 1 || list[0].Target != at.Group || list[0].Error != "" || len(list[0].Figures) == 0 {
			t.Errorf("journal: %+v, %v", list, err)
		}
	})
}

// If a process has locked the pages, the cure reports that it cannot free them and names
// the process. Living groups keep their pages.
func TestLocked(t *testing.T) {
	during(t, "pinned", deadGroups(400), func(at drill.Running) {
		resident := livePages(t, newGroup(t, at.Group+"/cache"), 16)
		before := resident()
		e := env(t)
		for _, c := range []cure.Cure{cure.Memcg(at.Group), cure.Pinned()} {
			r := apply(t, e, c)
			notes := strings.Join(r.Notes, "\n")
			if !strings.Contains(notes, "cannot") || !strings.Contains(notes, drill.Role) && !strings.Contains(notes, at.Group+"/living") {
				t.Errorf("the holder is not named: %s", notes)
			}
		}
		if after := resident(); float64(before-after) > 0.05*float64(before) {
			t.Errorf("of %d bytes of live page cache %d are left", before, after)
		}
	})
}

// Only the files that hold dying groups are dropped.
func TestPinned(t *testing.T) {
	groups := float64(deadGroups(300))
	during(t, "zombies", int(groups), func(at drill.Running) {
		resident := livePages(t, newGroup(t, at.Group+"/cache"), 16)
		before := resident()
		r := apply(t, env(t), cure.Pinned())
		if f := figure(t, r, "these files"); f.Before < groups*4096*0.9 || f.After > f.Before-groups*4096*0.9 {
			t.Errorf("pages not dropped: %+v", f)
		}
		if !strings.Contains(strings.Join(r.Plan.Does, "\n")+r.Plan.Gain, "drop") {
			t.Errorf("plan: %+v", r.Plan)
		}
		if after := resident(); float64(before-after) > 0.05*float64(before) {
			t.Errorf("of %d bytes of live page cache %d are left", before, after)
		}
	})
}

// A process empties its own group with only that group's files.
func TestSelf(t *testing.T) {
	g := newGroup(t, "/cure-test-self")
	name := filepath.Join(onDisk(t), "data")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = start(t, roleWriter, g.Dir(), name, "0", "16777216").Wait()
	before, err := g.MemoryUsage()
	if err != nil || before < 16<<20 {
		t.Fatalf("%d bytes are charged, %v", before, err)
	}
	cmd := exec.Command("/proc/self/exe", roleSelf, g.Dir())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r cure.Report
	if err := json.Unmarshal(out, &r); err != nil || !r.Applied || r.Target != g.Dir() {
		t.Fatalf("%s: %v", out, err)
	}
	// The rest is the kernel's own memory.
	if after, err := g.MemoryUsage(); err != nil || after > before/4 {
		t.Errorf("%d of %d bytes are left, %v", after, before, err)
	}
}

// Missing write access is reported.
func TestSelfSaysWhatIsMissing(t *testing.T) {
	if _, err := cure.Self().Run(t.Context(), cure.Env{}, cure.Options{}); err == nil || holdfast.HintOf(err) == "" {
		t.Errorf("without control groups: %v", err)
	}
	g := newGroup(t, "/cure-test-readonly")
	ro := t.TempDir()
	if err := unix.Mount(g.Dir(), ro, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(ro, unix.MNT_DETACH) }()
	if err := unix.Mount("", ro, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	e := env(t)
	for i, m := range e.Host.Groups { // as in a container: only its own group is mounted
		if m.Point == g.Point {
			e.Host.Groups[i].Point, e.Host.Groups[i].Root = ro, ownPath(t)
		}
	}
	if _, err := cure.Self().Run(t.Context(), e, cure.Options{}); err == nil || !strings.Contains(err.Error(), "read-only") || holdfast.HintOf(err) == "" {
		t.Errorf("mounted read-only: %v", err)
	}
}

// ownPath returns the path of this process's group.
func ownPath(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, p, ok := strings.Cut(strings.TrimSpace(line), ":memory:"); ok {
			return p
		}
	}
	t.Fatalf("no memory controller: %s", b)
	return ""
}

// A container's directory entries are freed, up to the bound.
func TestDentries(t *testing.T) {
	names := 200_000
	if vmtest.Inside() {
		names = 60_000
	}
	during(t, "dentries", names, func(at drill.Running) {
		r := apply(t, env(t), cure.Dentries(at.Group))
		if f := figure(t, r, "kernel memory"); f.Before < float64(names)*150 || f.After > 0.3*f.Before {
			t.Errorf("kernel memory: %+v", f)
		}
	})
}

// Impossible cures are refused before anything is changed.
func TestRefused(t *testing.T) {
	e := env(t)
	for name, x := range map[string]struct {
		cure cure.Cure
		o    cure.Options
	}{
		"a bound of nothing":   {cure.DropCaches(), cure.Options{Bytes: 1}},
		"no time":              {cure.DropCaches(), cure.Options{For: time.Millisecond}},
		"too much time":        {cure.DropCaches(), cure.Options{For: time.Hour}},
		"more slab than that":  {cure.DropSlab(), cure.Options{Apply: true, Bytes: 1 << 20}},
		"the root":             {cure.Dentries("/"), cure.Options{}},
		"the root of v1":       {cure.Memcg("/"), cure.Options{}},
		"a relative profile":   {cure.Fadvise(cure.FadviseTarget{File: "p.json"}), cure.Options{}},
		"a path that is not":   {cure.Pinned("/no/such/path"), cure.Options{}},
		"a setting that is no": {cure.Sysctl("kernel.panic", ""), cure.Options{}},
	} {
		if r, err := x.cure.Run(t.Context(), e, x.o); err == nil || r.Applied {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for _, c := range []cure.Cure{cure.Memcg("/no/such/group"), cure.Dentries("/../..//no-such"), cure.Sysctl("x", "")} {
		if _, err := c.Run(t.Context(), e, cure.Options{}); !errors.Is(err, holdfast.ErrNotFound) || holdfast.HintOf(err) == "" {
			t.Errorf("error %v", err)
		}
	}
	if list, err := e.Journal.List(0); err != nil || len(list) != 0 {
		t.Errorf("journal: %+v, %v", list, err)
	}
}

// A dry run drops nothing.
func TestDropCachesDryRun(t *testing.T) {
	r, err := cure.DropCaches().Run(t.Context(), env(t), cure.Options{})
	if err != nil || r.Applied || r.Plan.Risk == "" || len(r.Figures) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
