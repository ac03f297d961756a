package baseline

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
)

var saved = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)

func group(name, g string, v float64, u fact.Unit) fact.Fact {
	return fact.Fact{Name: name, Value: v, Unit: u, Subject: fact.Subject{Cgroup: g}}
}

// look returns the facts of an examination.
func look() []fact.Fact {
	return []fact.Fact{
		{Name: fact.KernelRelease, Text: "6.1.0-18-amd64", Unit: fact.Word},
		{Name: fact.MemcgDying, Value: 300}, {Name: fact.SlabTotal, Value: 1 << 30, Unit: fact.Bytes},
		{Name: fact.ReclaimP99, Value: 0.04, Unit: fact.Millis}, {Name: fact.CompactStalls, Value: 0, Unit: fact.PerSecond},
		{Name: fact.DiskP99, Value: 4, Unit: fact.Millis},
		group(fact.GroupSystem, "/a", 0.2, fact.Share), group(fact.GroupCPU, "/a", 1.5, fact.Share),
		group(fact.GroupSystem, "/b", 0.6, fact.Share), group(fact.GroupCPU, "/b", 0.5, fact.Share),
	}
}

func TestBaselineOfExamination(t *testing.T) {
	b := New("", "ci", "n1", saved, 30, look())
	if b.Name != "ci-6.1.0-18-amd64" || b.Kernel != "6.1.0-18-amd64" || b.Validate() != nil {
		t.Errorf("%+v, %v", b, b.Validate())
	}
	// 0.2 of 1.5 CPUs and 0.6 of half of one.
	if v := b.Facts[fact.BaseSystem]; math.Abs(v-0.3) > 1e-9 {
		t.Errorf("kernel share %v, want 0.3", v)
	}
	var set fact.Set
	set.Add(b.Known()...)
	if v, ok := set.Host(fact.BaseDisk); !ok || v != 4 {
		t.Errorf("known fact about the disk: %v, %v", v, ok)
	}
}

func TestDirectory(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), DirName))
	if all, err := d.List(); err != nil || len(all) != 0 {
		t.Errorf("empty directory: %v, %v", all, err)
	}
	b := New("good", "", "n1", saved, 30, look())
	b.Profile = &Profile{File: "good.pb.gz", SHA256: "00", Bytes: 5}
	for range 2 { // the second save replaces the first
		if err := d.Save(b); err != nil {
			t.Fatal(err)
		}
	}
	all, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Baseline{b}, all); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// An invalid file is reported and hides no valid one.
	for name, text := range map[string]string{"torn": `{"name":"torn","fac`, "other": `{"name":"x","facts":{"a":1},"units":{}}`, "empty": ""} {
		if err := os.WriteFile(d.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err = d.List()
	if len(all) != 1 || err == nil || strings.Count(err.Error(), "read baseline") != 3 {
		t.Errorf("%d baselines, %v", len(all), err)
	}
	if err := d.Remove("good"); err != nil {
		t.Error(err)
	}
	if err := d.Remove("good"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("second Remove: %v", err)
	}
	for _, name := range []string{"", "../x", "a/b", ".hidden", "-x", strings.Repeat("a", 65), "A B"} {
		b.Name = name
		if d.Save(b) == nil || d.Remove(name) == nil {
			t.Errorf("the name %q is accepted", name)
		}
	}
}

func TestChoose(t *testing.T) {
	of := func(name, kernel, role string, day int) Baseline {
		return Baseline{Name: name, Kernel: kernel, Role: role, At: saved.AddDate(0, 0, day)}
	}
	all := []Baseline{of("a", "6", "", 0), of("b", "6", "", 1), of("c", "6", "ci", 0), of("d", "5", "ci", 9), of("e", "6", "web", 9)}
	for _, c := range []struct{ kernel, role, want string }{{"6", "ci", "c"}, {"6", "", "b"}, {"6", "db", "b"}, {"5", "ci", "d"}} {
		if b, err := Choose(all, c.kernel, c.role); err != nil || b.Name != c.want {
			t.Errorf("%+v: %s, %v", c, b.Name, err)
		}
	}
	for _, c := range [][2]string{{"4", ""}, {"5", ""}} {
		if b, err := Choose(all, c[0], c[1]); !errors.Is(err, holdfast.ErrNotFound) || holdfast.HintOf(err) == "" {
			t.Errorf("%v: %s, %v", c, b.Name, err)
		}
	}
}

// The largest difference comes first. Values that are tiny on both sides do not differ.
func TestCompare(t *testing.T) {
	healthy := New("good", "ci", "n1", saved, 30, look())
	sick := look()
	for i := range sick {
		switch sick[i].Name {
		case fact.MemcgDying:
			sick[i].Value = 50_000
		case fact.ReclaimP99:
			sick[i].Value = 8
		case fact.CompactStalls:
			sick[i].Value = 0.4
		case fact.DiskP99:
			sick[i].Value = 1
		case fact.KernelRelease:
			sick[i].Text = "6.1.0-20-amd64"
		}
	}
	c := Compare(healthy, New("", "web", "n2", saved, 30, sick[:len(sick)-1]))
	if c.Differences[0].Name != fact.MemcgDying || c.Differences[0].Healthy != 300 || c.Differences[0].Now != 50_000 || c.Differences[1].Name != fact.ReclaimP99 {
		t.Errorf("%+v", c.Differences)
	}
	for _, d := range c.Differences {
		switch {
		case d.Name == fact.CompactStalls && d.Factor > 1.5:
			t.Errorf("a tiny value differs: %+v", d)
		case d.Name == fact.DiskP99 && d.Factor > 0.5:
			t.Errorf("a quarter of the value differs: %+v", d)
		}
	}
	if len(c.Notices) != 2 || !strings.Contains(c.Notices[0], "6.1.0-20-amd64") {
		t.Errorf("%q", c.Notices)
	}
}

func TestProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "good.pb.gz")
	if _, err := ReadProfile(file); err == nil {
		t.Error("a missing file was read")
	}
	if err := os.WriteFile(file, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := ReadProfile(file)
	if err != nil || p.Bytes != 3 || p.SHA256 != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("%+v, %v", p, err)
	}
	if err := os.Truncate(file, MaxProfile+1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadProfile(file); err == nil {
		t.Error("a file that is too large was read")
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadProfile(file); err == nil {
		t.Error("an empty file was read")
	}
}

// For any words: a generated name is valid. For any two values: the factor is over 0, and
// swapping the values inverts it.
func TestNamesAndFactors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		role, kernel := rapid.String().Draw(t, "role"), rapid.String().Draw(t, "kernel")
		if name := DefaultName(role, kernel); CheckName(name) != nil {
			t.Fatalf("%q of %q and %q", name, role, kernel)
		}
		a, b := rapid.Float64Range(-1, 1e12).Draw(t, "a"), rapid.Float64Range(-1, 1e12).Draw(t, "b")
		u := rapid.SampledFrom([]fact.Unit{fact.Count, fact.Bytes, fact.Share, fact.Millis, "odd"}).Draw(t, "unit")
		x, y := factor(a, b, u), factor(b, a, u)
		if !(x > 0) || math.Abs(x*y-1) > 1e-6 {
			t.Fatalf("factors of %v and %v: %v and %v", a, b, x, y)
		}
	})
}

// The number of baselines is bounded.
func TestDirectoryIsBounded(t *testing.T) {
	d := Dir(t.TempDir())
	for i := range maxKept {
		if err := os.WriteFile(d.path(fmt.Sprint("b", i)), fmt.Appendf(nil, `{"name":"b%d","at":"2026-01-01T00:00:00Z","kernel":"6","seconds":1,"facts":{"a":1},"units":{}}`, i), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := New("one-more", "", "n1", saved, 30, look())
	if err := d.Save(b); err == nil || holdfast.HintOf(err) == "" {
		t.Errorf("a baseline beyond the bound was saved: %v", err)
	}
	b.Name = "b7"
	if err := d.Save(b); err != nil {
		t.Errorf("an existing baseline is not replaced: %v", err)
	}
}
