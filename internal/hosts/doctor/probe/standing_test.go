package probe

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// openStanding opens the named standing probes over the fixture.
func (f *fixture) openStanding(now time.Time, names ...string) map[string]Series {
	f.t.Helper()
	all := make(map[string]Series)
	for _, p := range AllStanding() {
		if !slices.Contains(names, p.Name) {
			continue
		}
		s, err := p.Open(f.t.Context(), f.host(), now)
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() {
			if err := s.Close(); err != nil {
				f.t.Error(err)
			}
		})
		all[p.Name] = s
	}
	return all
}

// standingFiles lists the standing probes that read files.
var standingFiles = []string{"host", "slab", "memory", "dentry", "memcg", "groups", "cpu", "disk", "conntrack"}

// A round of the standing probes returns the same facts as an examination of the same
// length.
func TestStandingMatchesExamination(t *testing.T) {
	for file, names := range map[string][]string{"testdata/hybrid.txtar": standingFiles, "testdata/v2.txtar": {"memcg", "groups"}} {
		f := load(t, file)
		begin := time.Now()
		open := f.openStanding(begin, names...)
		f.write("after/")
		var facts []fact.Fact
		for name, s := range open {
			fs, err := s.Read(t.Context(), begin.Add(10*time.Second))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			facts = append(facts, fs...)
		}
		want, err := os.ReadFile(strings.TrimSuffix(file, ".txtar") + ".facts.txt")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), lines(facts)); d != "" {
			t.Errorf("%s: facts (-examination +round):\n%s", file, d)
		}
	}
}

// Each round covers the time since the one before. A failed round loses no counts.
func TestRoundsFollowEachOther(t *testing.T) {
	f := load(t, "testdata/hybrid.txtar")
	begin := time.Now()
	s := f.openStanding(begin, "cpu")["cpu"]
	stat := filepath.Join(f.root, "proc/stat")
	busy := func(user, idle string) {
		t.Helper()
		line := "cpu0 " + user + " 0 0 " + idle + " 0 0 0 0 0 0\n"
		if err := os.WriteFile(stat, []byte("cpu"+strings.TrimPrefix(line, "cpu0")+line), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	value := func(at time.Duration) float64 {
		t.Helper()
		fs, err := s.Read(t.Context(), begin.Add(at))
		if err != nil {
			t.Fatal(err)
		}
		var set fact.Set
		set.Add(fs...)
		v, ok := set.Host(fact.CPUBusy)
		if !ok {
			t.Fatalf("no %s in %v", fact.CPUBusy, fs)
		}
		return v
	}
	busy("100000", "100000")
	value(10 * time.Second)
	busy("100300", "100700")
	if v := value(20 * time.Second); math.Abs(v-0.3) > 1e-9 {
		t.Errorf("busy %v, want 0.3", v)
	}
	if err := os.WriteFile(stat, []byte("nothing\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if fs, err := s.Read(t.Context(), begin.Add(30*time.Second)); err == nil {
		t.Errorf("no error, facts %v", fs)
	}
	busy("100800", "101200")
	if v := value(40 * time.Second); math.Abs(v-0.5) > 1e-9 {
		t.Errorf("busy %v after a failed round, want 0.5 over both rounds", v)
	}
}

// The use of the host's own connection tracking table is read without a pass over every
// process.
func TestHostConntrack(t *testing.T) {
	f := load(t, "testdata/hybrid.txtar")
	dir := filepath.Join(f.root, "proc/sys/net/netfilter")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"nf_conntrack_count": "750\n", "nf_conntrack_max": "1000\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fs, err := f.openStanding(time.Now(), "conntrack")["conntrack"].Read(t.Context(), time.Now())
	if err != nil || len(fs) != 1 || fs[0].Value != 0.75 {
		t.Errorf("%v, %v", fs, err)
	}
}

// The kernel's counters stay attached over rounds. The test needs root.
func TestStandingTracepoints(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run the test as root: it attaches to tracepoints")
	}
	f := &fixture{t: t, a: load(t, "testdata/hybrid.txtar").a}
	h := f.thisHost()
	begin := time.Now()
	for _, p := range AllStanding() {
		if !slices.Contains([]string{"drains", "reclaim", "removals"}, p.Name) {
			continue
		}
		s, err := p.Open(t.Context(), h, begin)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		for round := range 2 {
			made := 0
			if p.Name == "removals" {
				made = 5
				removeGroups(t, h, made)
			}
			fs, err := s.Read(t.Context(), begin.Add(time.Duration(round+1)*10*time.Second))
			if err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
			sum := fact.Summary(fs)
			for _, name := range []string{fact.Drains, fact.ReclaimCalls, fact.GroupsRemoved} {
				if v, ok := sum[name]; slices.Contains(p.Gives, name) && (!ok || v < float64(made)/10) {
					t.Errorf("%s, round %d: %s is %v, %v", p.Name, round, name, v, ok)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// thisHost describes this host.
func (f *fixture) thisHost() Host {
	f.t.Helper()
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		f.t.Fatal(err)
	}
	return Host{Proc: proc.Host, Sys: "/sys", Groups: groups}
}

// removeGroups creates control groups and removes them.
func removeGroups(t *testing.T, h Host, n int) {
	t.Helper()
	m, ok := h.Groups.Memory()
	if !ok {
		t.Fatal("no memory controller")
	}
	for i := range n {
		dir := filepath.Join(m.Point, fmt.Sprintf("holdfast-test-%d-%d", os.Getpid(), i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
}
