package probe

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// The logs that an engine has open are found by their paths. A log that was rotated counts from
// its beginning.
func TestLogs(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(filepath.Join(root, "proc")), Groups: cgroup.Mounts{{Point: filepath.Join(root, "cgroup"), V2: true}}}
	one, two := strings.Repeat("a1", 32), strings.Repeat("b2", 32)
	write := func(name string, size int) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("containers/"+one+"/"+one+"-json.log", 1000)
	write("containers/"+two+"/local-logs/container.log", 5000)
	write("containers/"+two+"/config.json", 10)
	write("dockerd.log", 10)
	write("proc/7/comm", 0)
	write("proc/8/comm", 0)
	for name, text := range map[string]string{"7": "dockerd\n", "8": "tail\n"} {
		if err := os.WriteFile(filepath.Join(root, "proc", name, "comm"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(root, "proc", name, "fd"), 0o755); err != nil {
			t.Fatal(err)
		}
		for fd, file := range map[string]string{"3": one + "/" + one + "-json.log", "4": two + "/local-logs/container.log", "5": two + "/config.json", "6": "../dockerd.log"} {
			if err := os.Symlink(filepath.Join(root, "containers", file), filepath.Join(root, "proc", name, "fd", fd)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range []string{one, two} {
		if err := os.MkdirAll(filepath.Join(root, "cgroup", "docker", id), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before, err := readLogs(t.Context(), h)
	if want := map[string]float64{one: 1000, two: 5000}; err != nil || !maps.Equal(before, want) {
		t.Fatalf("%v, %v", before, err)
	}
	write("containers/"+one+"/"+one+"-json.log", 21000)
	write("containers/"+two+"/local-logs/container.log", 500)
	after, err := readLogs(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	fs, err := logFacts(h, before, after, 10*time.Second)
	got := make(map[string]float64)
	for _, f := range fs {
		got[f.Name+f.Subject.Cgroup] = f.Value
	}
	want := map[string]float64{fact.LogsSeen: 2, fact.LogGrowth + "/docker/" + one: 2000, fact.LogGrowth + "/docker/" + two: 50}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}
