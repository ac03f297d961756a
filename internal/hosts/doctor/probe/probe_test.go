package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// fixture is a host as text. The files below before/ exist when an examination begins;
// those below after/ replace them before it ends, 10 s later.
type fixture struct {
	t    *testing.T
	file string
	a    *txtar.Archive
	root string
}

func load(t *testing.T, file string) *fixture {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, file: file, a: a, root: t.TempDir()}
	f.write("before/")
	return f
}

func (f *fixture) write(prefix string) {
	f.t.Helper()
	for _, x := range f.a.Files {
		name, ok := strings.CutPrefix(x.Name, prefix)
		if !ok {
			continue
		}
		path := filepath.Join(f.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			f.t.Fatal(err)
		}
		if err := os.WriteFile(path, x.Data, 0o644); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) text(name string) string {
	for _, x := range f.a.Files {
		if x.Name == name {
			return string(x.Data)
		}
	}
	return ""
}

func (f *fixture) host() Host {
	f.t.Helper()
	groups, err := cgroup.ParseMountinfo([]byte(strings.ReplaceAll(f.text("mounts"), "ROOT", f.root)))
	if err != nil {
		f.t.Fatal(err)
	}
	return Host{Proc: proc.FS(f.root + "/proc"), Sys: f.root + "/sys", Groups: groups}
}

// examine runs the named probes over the fixture.
func (f *fixture) examine(names ...string) (facts []fact.Fact, gaps []string) {
	f.t.Helper()
	h, begin := f.host(), time.Now()
	var open []Series
	for _, p := range All() {
		if !slices.Contains(names, p.Name) {
			continue
		}
		s, err := p.Open(f.t.Context(), h, begin)
		if err != nil {
			gaps = append(gaps, p.Name+": "+err.Error())
			continue
		}
		open = append(open, s)
	}
	f.write("after/")
	for _, s := range open {
		fs, err := s.Read(f.t.Context(), begin.Add(10*time.Second))
		err = errors.Join(err, s.Close())
		facts = append(facts, fs...)
		if err != nil {
			gaps = append(gaps, err.Error())
		}
	}
	return facts, gaps
}

// lines formats facts, one per line, sorted.
func lines(facts []fact.Fact) string {
	var out []string
	for _, f := range facts {
		subject := strings.TrimSpace(f.Subject.Cgroup + " " + f.Subject.Device)
		out = append(out, strings.Join(strings.Fields(fmt.Sprintf("%s %s %.4g %s %s", f.Name, subject, f.Value, f.Unit, f.Text)), " "))
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + "\n"
}

// reading lists the probes that read files.
var reading = []string{"host", "memory", "slab", "dentry", "memcg", "groups", "cpu", "disk"}

// The facts of each fixture are in its file facts.txt, for review (UPDATE=1 writes it).
func TestFixtures(t *testing.T) {
	for file, probes := range map[string][]string{"testdata/hybrid.txtar": reading, "testdata/v2.txtar": {"memcg", "groups"}} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			facts, gaps := load(t, file).examine(probes...)
			got := lines(facts)
			golden := strings.TrimSuffix(file, ".txtar") + ".facts.txt"
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("facts (-file +now):\n%s", d)
			}
			if len(gaps) > 0 {
				t.Errorf("gaps: %q", gaps)
			}
		})
	}
}

// A host without readable files yields gaps, and no facts with value zero.
func TestNothingToRead(t *testing.T) {
	f := &fixture{t: t, a: &txtar.Archive{}, root: t.TempDir()}
	facts, gaps := f.examine("host", "memory", "dentry", "memcg", "pinned", "groups", "tasks", "cpu", "disk", "conntrack", "drains", "locks")
	if len(facts) > 0 {
		t.Errorf("facts without files:\n%s", lines(facts))
	}
	if len(gaps) < 12 {
		t.Errorf("too few gaps: %q", gaps)
	}
}

// Malformed files are errors and yield no facts.
func TestGarbage(t *testing.T) {
	for _, name := range []string{"sys/fs/dentry-state", "stat", "diskstats", "net/softnet_stat", "buddyinfo"} {
		f := load(t, "testdata/hybrid.txtar")
		path := filepath.Join(f.root, "proc", name)
		if err := os.WriteFile(path, []byte("what is this 7f3z\nNode 0, zone x y z\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		f.a.Files = slices.DeleteFunc(f.a.Files, func(x txtar.File) bool { return x.Name == "after/proc/"+name })
		_, gaps := f.examine(reading...)
		if name == "net/softnet_stat" { // its fact is absent, so its rule is not judged
			facts, _ := f.examine("cpu")
			if strings.Contains(lines(facts), fact.NetDrops) {
				t.Errorf("%s: a fact from a malformed file", name)
			}
			continue
		}
		if len(gaps) != 1 {
			t.Errorf("%s: gaps %q", name, gaps)
		}
	}
}

// With v1 alone the facts about containers are the same, except for pressure, which only
// the unified hierarchy has.
func TestV1Alone(t *testing.T) {
	f := load(t, "testdata/hybrid.txtar")
	for i := range f.a.Files {
		if f.a.Files[i].Name == "mounts" {
			_, v1, _ := strings.Cut(string(f.a.Files[i].Data), "\n") // the unified hierarchy is the first line
			f.a.Files[i].Data = []byte(v1)
		}
	}
	facts, gaps := f.examine("memcg", "groups")
	got := make(map[string]bool)
	for _, x := range facts {
		got[x.Name] = true
	}
	for _, name := range []string{fact.MemcgDying, fact.GroupCPU, fact.GroupSystem, fact.GroupThrottled, fact.GroupLimitHits, fact.GroupLimit, fact.GroupRefaults, fact.GroupKernelMem, fact.GroupPids, fact.GroupWrites} {
		if !got[name] {
			t.Errorf("no %s", name)
		}
	}
	if got[fact.GroupMemoryFull] || got[fact.GroupIOFull] || len(gaps) > 0 {
		t.Errorf("pressure without a source, or gaps: %v %q", facts, gaps)
	}
}

// The watches of this process are counted for its user.
func TestInotifyInstances(t *testing.T) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for range 3 {
		if _, err := unix.InotifyAddWatch(fd, t.TempDir(), unix.IN_CREATE); err != nil {
			t.Fatal(err)
		}
	}
	h := Host{Proc: proc.Host}
	if o, err := openFiles(h, os.Getpid(), map[string]bool{}); err != nil || o.files < 3 || len(o.inotify) < 1 || o.watches < 3 {
		t.Errorf("%+v, %v", o, err)
	}
	if os.Geteuid() != 0 {
		return // without root, other users' processes are unknown
	}
	facts, err := readInotify(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if text := lines(facts); !strings.Contains(text, fact.Inotify+" ") || !strings.Contains(text, "watches of user 0") {
		t.Errorf("facts:\n%s", text)
	}
}

// An old kernel shows a 0 where newer ones count negative entries. It is not taken as a
// count.
func TestOldKernelsDentries(t *testing.T) {
	f := load(t, "testdata/hybrid.txtar")
	if err := os.WriteFile(filepath.Join(f.root, "proc/sys/kernel/osrelease"), []byte("4.19.0-27-amd64\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	facts, gaps := f.examine("dentry")
	if strings.Contains(lines(facts), fact.DentryNegative) || len(gaps) != 1 {
		t.Errorf("facts %v, gaps %q", facts, gaps)
	}
}

// If only a part of the tree is mounted, dying groups cannot be distinguished from groups
// outside of it.
func TestPartOfHierarchy(t *testing.T) {
	for file, cut := range map[string]func(root string) error{
		"testdata/hybrid.txtar": func(root string) error { return os.Remove(root + "/cg/memory/release_agent") },
		"testdata/v2.txtar":     func(root string) error { return os.WriteFile(root+"/cg/cgroup.type", []byte("domain\n"), 0o644) },
	} {
		f := load(t, file)
		if err := cut(f.root); err != nil {
			t.Fatal(err)
		}
		facts, gaps := f.examine("memcg")
		if len(facts) > 0 || len(gaps) != 1 || !strings.Contains(gaps[0], errPartial.Error()) {
			t.Errorf("%s: facts %v, gaps %q", file, facts, gaps)
		}
	}
}

func TestUnits(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for path, want := range map[string]string{
		"/docker/" + id:                              "/docker/" + id,
		"/docker/" + id + "/inner/deep":              "/docker/" + id,
		"/system.slice/docker-" + id + ".scope/x":    "/system.slice/docker-" + id + ".scope",
		"/kubepods/pod1/cri-containerd-" + id + "/y": "/kubepods/pod1/cri-containerd-" + id,
		"/system.slice/ssh.service":                  "/system.slice/ssh.service",
		"/docker/" + id + "0":                        "/docker/" + id + "0", // 65 digits are not an id
		"/":                                          "/",
	} {
		if got := fact.UnitGroup(path); got != want {
			t.Errorf("%s: unit %s, want %s", path, got, want)
		}
	}
	if got := fact.ContainerID("/system.slice/docker-" + id + ".scope/x"); got != id {
		t.Errorf("container %q", got)
	}
}

func TestConntrackTable(t *testing.T) {
	got, err := parseConntrack("entries  clashres found drop early_drop icmp_error\n0000000a 00000000 00000000 00000003 00000001 00000000\n0000000a 00000000 00000000 00000004 00000000 00000000\n")
	if err != nil || got.entries != 10 || got.drops != 8 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseConntrack("entries\nzz\n"); err == nil {
		t.Error("malformed text is accepted")
	}
}

// Every fact that a rule may need has exactly one probe that declares it, and probes have
// the fields that a report needs.
func TestProbesDeclareFacts(t *testing.T) {
	from := make(map[string]string)
	for _, p := range All() {
		if p.Name == "" || p.Sees == "" || len(p.Gives) == 0 || p.Open == nil {
			t.Errorf("%+v", p)
		}
		for _, g := range p.Gives {
			if from[g] != "" {
				t.Errorf("%s is declared by %s and %s", g, from[g], p.Name)
			}
			from[g] = p.Name
		}
	}
}

// The test of the disk refuses a directory in memory, and the figures of CPU and memory stay.
func TestMachineInMemory(t *testing.T) {
	fs, err := testMachine(t.Context(), Host{Scratch: "/dev/shm"})
	if err == nil || !strings.Contains(err.Error(), "in memory") || len(fs) != 2 {
		t.Errorf("%+v, error %v", fs, err)
	}
	fs, err = testMachine(t.Context(), Host{})
	if err != nil || len(fs) < 3 {
		t.Errorf("in the default directory: %+v, error %v", fs, err)
	}
}

// Examinations of this machine: a probe returns only facts that it declares.
func TestOnThisHost(t *testing.T) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	h := Host{Proc: proc.Host, Sys: "/sys", Groups: groups, Scratch: t.TempDir()}
	for _, p := range All() {
		begin := time.Now()
		s, err := p.Open(t.Context(), h, begin)
		opened := time.Since(begin)
		if err != nil {
			t.Logf("%s: %v", p.Name, err) // expected without root or the feature
			continue
		}
		time.Sleep(50 * time.Millisecond)
		ending := time.Now()
		facts, err := s.Read(t.Context(), ending)
		err = errors.Join(err, s.Close())
		t.Logf("%s: %d facts, error %v; opened in %v, read and closed in %v", p.Name, len(facts), err, opened, time.Since(ending))
		for _, f := range facts {
			if !slices.Contains(p.Gives, f.Name) {
				t.Errorf("%s returns the undeclared fact %s", p.Name, f.Name)
			}
			shrinks := slices.Contains([]string{fact.UnclosedMore, fact.MemoryDiskMore}, f.Name)
			if f.Value < 0 && !shrinks || f.Value != f.Value {
				t.Errorf("%s: %+v", p.Name, f)
			}
		}
	}
}
