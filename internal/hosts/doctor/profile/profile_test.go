package profile

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// recording returns a recording of a host with 2 CPUs over 10 s. samples holds the count
// of each task and stack. Names of kernel functions begin with k_ or ksys_.
func recording(samples ...Sample) *Profile {
	return &Profile{
		Meta: Meta{Format: format, Host: "h1", Kernel: "6.1.0", CPUs: 2, Hz: 100, Seconds: 10, Began: time.Unix(1_700_000_000, 0).UTC(), Lost: 1, Gaps: []string{"a gap"}},
		Frames: []Frame{{Name: "main", File: "/app"}, {Name: "log", File: "/app"}, {Name: "entry_SYSCALL_64_after_hwframe", Kernel: true}, {Name: "do_syscall_64", Kernel: true},
			{Name: "ksys_fadvise64_64", Kernel: true}, {Name: "generic_fadvise", Kernel: true}, {Name: "[libc.so.6]", File: "/lib/libc.so.6"}, {Name: "<b>&", File: "/<i>"}},
		Samples: samples,
	}
}

var (
	web    = Task{Container: "web-1", ContainerID: strings.Repeat("ab", 32), Image: "shop:7", Cgroup: "/docker/" + strings.Repeat("ab", 32), Pid: 7, Comm: "web"}
	logger = Task{Container: "log-1", ContainerID: strings.Repeat("cd", 32), Image: "logger:2", Cgroup: "/docker/" + strings.Repeat("cd", 32), Pid: 8, Comm: "logger"}
	host   = Task{Cgroup: "/", Comm: "kworker/0:1"}

	working  = []int{0}
	advising = []int{5, 4, 3, 2, 1, 0}
)

func TestRoundTrip(t *testing.T) {
	p := recording(Sample{web, working, 500}, Sample{logger, advising, 20}, Sample{host, nil, 3})
	file := filepath.Join(t.TempDir(), "x.pb.gz")
	f, err := Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Abort()
	if err := f.Commit(p); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	got, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, p) {
		t.Errorf("read %+v\nwrote %+v", got, p)
	}
	// Other tools can read the file.
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := profile.ParseData(b)
	if err != nil || theirs.CheckValid() != nil || len(theirs.Sample) != 3 || theirs.Sample[0].Label["container"][0] != "web-1" || theirs.Sample[0].NumLabel["pid"][0] != 7 {
		t.Errorf("%v, %v", theirs, err)
	}
	raw, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-raw", file).CombinedOutput()
	if err != nil || !strings.Contains(string(raw), "container:[log-1]") || !strings.Contains(string(raw), "ksys_fadvise64_64") {
		t.Errorf("%v: %s", err, raw)
	}
	top, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-top", "-tagfocus=container=log-1", file).CombinedOutput()
	if err != nil || !strings.Contains(string(top), "generic_fadvise") {
		t.Errorf("%v: %s", err, top)
	}
}

// Untrusted names are printable after reading.
func TestPrintable(t *testing.T) {
	p := recording(Sample{Task{Container: "a\x1b[31m", Comm: "b\nc"}, working, 1})
	p.Frames[0] = Frame{Name: "d\xff\u2028", File: "/e\x00"}
	p.Meta.Host, p.Meta.Gaps = "f\r", []string{"g\a"}
	got, err := Read(bytes.NewReader(written(t, p)))
	if err != nil {
		t.Fatal(err)
	}
	if w := got.Samples[0].Task; w.Container != "a?[31m" || w.Comm != "b?c" || got.Frames[0] != (Frame{Name: "d??", File: "/e?"}) || got.Meta.Host != "f?" || got.Meta.Gaps[0] != "g?" {
		t.Errorf("%+v", got)
	}
}

// The file at the path stays until the new one is complete, and no other file is left.
func TestCreate(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.pb.gz")
	if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Create(file)
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("no more room")
	if err := f.CommitWith(func(w io.Writer) error { w.Write([]byte("half")); return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if f, err = Create(file); err != nil {
		t.Fatal(err)
	}
	f.Abort()
	f.Abort()
	b, err := os.ReadFile(file)
	if names, err2 := os.ReadDir(dir); err != nil || string(b) != "old" || err2 != nil || len(names) != 1 {
		t.Errorf("%q, %v, %v, %v", b, err, names, err2)
	}
	for _, bad := range []string{dir, "/dev/null", filepath.Join(dir, "missing", "x")} {
		if f, err := Create(bad); err == nil {
			f.Abort()
			t.Errorf("%s is accepted as a path", bad)
		}
	}
}

func pack(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(data)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func written(t testing.TB, p *Profile) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// changed returns a recording with modified metadata or other contents.
func changed(t testing.TB, change func(*profile.Profile)) []byte {
	t.Helper()
	out, err := encode(recording(Sample{web, working, 5}))
	if err != nil {
		t.Fatal(err)
	}
	change(out)
	var b bytes.Buffer
	if err := out.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestBadFiles(t *testing.T) {
	whole := written(t, recording(Sample{web, working, 500}))
	// A sample of two bytes becomes an object of a hundred.
	crowd := bytes.Repeat(pack(t, bytes.Repeat(protowire.AppendVarint(protowire.AppendTag(nil, fieldSample, protowire.BytesType), 0), 1<<20)), 5)
	bomb := bytes.Repeat(pack(t, make([]byte, 1<<20)), maxUnpacked>>20+1)
	for name, c := range map[string]struct {
		file []byte
		say  string
	}{
		"empty":           {nil, "empty"},
		"text":            {[]byte("hello, this is not a recording"), ErrFormat.Error()},
		"packed text":     {pack(t, []byte("hello, this is not a recording")), ErrFormat.Error()},
		"truncated":       {whole[:len(whole)/2], "truncated"},
		"truncated head":  {whole[:5], "truncated"},
		"bomb":            {bomb, "longer"},
		"too many parts":  {crowd, "more parts"},
		"another program": {changed(t, func(p *profile.Profile) { p.Comments = nil }), "another program"},
		"no meta":         {changed(t, func(p *profile.Profile) { p.Comments[0] = "{" }), ErrFormat.Error()},
		"newer":           {changed(t, func(p *profile.Profile) { p.Comments[0] = `{"holdfast_recording":2}` }), "format 2"},
		"no CPU":          {changed(t, func(p *profile.Profile) { p.Comments[0] = `{"holdfast_recording":1,"hz":99,"seconds":1}` }), "0 CPUs"},
		"no time":         {changed(t, func(p *profile.Profile) { p.Comments[0] = `{"holdfast_recording":1,"hz":99,"cpus":1}` }), "lasted 0"},
		"less than none":  {changed(t, func(p *profile.Profile) { p.Sample[0].Value[0] = -1 }), "counts [-1"},
	} {
		_, err := Read(bytes.NewReader(c.file))
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for n := range len(whole) { // for every truncation
		if _, err := Read(bytes.NewReader(whole[:n])); err == nil {
			t.Errorf("%d bytes of %d are accepted", n, len(whole))
		}
	}
	dir := t.TempDir()
	if err := unix.Mkfifo(dir+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, odd := range []string{dir, dir + "/pipe", dir + "/missing"} {
		if _, err := Open(odd); err == nil {
			t.Errorf("%s is accepted", odd)
		}
	}
}

func FuzzParse(f *testing.F) {
	out, err := encode(recording(Sample{web, working, 5}, Sample{logger, advising, 2}))
	if err != nil {
		f.Fatal(err)
	}
	var b bytes.Buffer
	if err := out.WriteUncompressed(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parse(data)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Errorf("error %v", err)
			}
			return
		}
		d := Compare(p, p)
		d.section("host", "", rootOf(d.groups))
		for _, c := range d.Containers {
			if c.Grew != 0 || math.IsNaN(c.Good) {
				t.Errorf("equal recordings differ: %+v", c)
			}
		}
		Summarize(p, 3)
	})
}

func TestSummary(t *testing.T) {
	s := Summarize(recording(Sample{web, working, 500}, Sample{logger, advising, 100}, Sample{logger, working, 20}, Sample{host, nil, 3}), 2)
	if s.Samples != 623 || s.CPUs != 0.623 {
		t.Errorf("%d samples, %v CPUs", s.Samples, s.CPUs)
	}
	want := []Usage{{Container: "web-1", ContainerID: web.ContainerID, Image: "shop:7", Command: "web", Samples: 500, CPUs: 0.5},
		{Container: "log-1", ContainerID: logger.ContainerID, Image: "logger:2", Command: "logger", Samples: 120, CPUs: 0.12, Kernel: 0.1}}
	if !reflect.DeepEqual(s.Containers, want) {
		t.Errorf("%+v", s.Containers)
	}
	if len(s.Kernel) != 1 || s.Kernel[0].Container != "log-1" || !slices.Equal(s.Kernel[0].Path, []string{"ksys_fadvise64_64", "generic_fadvise"}) {
		t.Errorf("%+v", s.Kernel)
	}
	if len(s.Functions) != 2 || s.Functions[0].Name != "main" || s.Functions[1].Name != "generic_fadvise" || !s.Functions[1].Kernel {
		t.Errorf("%+v", s.Functions)
	}
}
