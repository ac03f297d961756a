package hostload

import (
	"os"
	"path/filepath"
	"testing"
)

// proc writes files of a proc file system and returns their directory.
func proc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCPULoadIsTheShareSinceTheLastReading(t *testing.T) {
	m := New(proc(t, map[string]string{"stat": "cpu  100 0 100 700 100 0 0 0 0 0\n"}))
	if got, err := m.CPU(); err != nil || got != 0.2 {
		t.Fatalf("first: %v, %v; want 0.2 since boot", got, err)
	}
	if err := os.WriteFile(m.proc+"/stat", []byte("cpu  160 0 115 710 110 0 0 5 0 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := m.CPU(); err != nil || got != 0.8 { // 80 of 100 ticks
		t.Errorf("second: %v, %v; want 0.8", got, err)
	}
	if got, err := m.CPU(); err != nil || got != 0 {
		t.Errorf("in the same tick: %v, %v; want 0", got, err)
	}
}

func TestMemory(t *testing.T) {
	m := New(proc(t, map[string]string{"meminfo": "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\nHugePages_Total: 0\n"}))
	want := Memory{Total: 2 << 20, Available: 1 << 20}
	if got, err := m.Memory(); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestUnreadableFilesAreErrors(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"missing": {},
		"empty":   {"stat": "", "meminfo": ""},
		"strange": {"stat": "cpu a b c d e f g h\n", "meminfo": "MemTotal: many\n"},
	} {
		m := New(proc(t, files))
		if _, err := m.CPU(); err == nil {
			t.Errorf("%s: CPU returns no error", name)
		}
		if _, err := m.Memory(); err == nil {
			t.Errorf("%s: Memory returns no error", name)
		}
	}
}

func TestPressure(t *testing.T) {
	m := New(t.TempDir())
	if got, err := m.Pressure(); err != nil || got != 0 {
		t.Errorf("without pressure information: %v, %v; want 0", got, err)
	}
	if err := os.Mkdir(m.proc+"/pressure", 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(m.proc+"/pressure/cpu", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("some avg10=3.50 avg60=36.81 avg300=53.99 total=4413857903\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
	if got, err := m.Pressure(); err != nil || got != 0.035 {
		t.Errorf("got %v, %v; want 0.035", got, err)
	}
	write("none")
	if got, err := m.Pressure(); err == nil {
		t.Errorf("invalid text was read as %v", got)
	}
}
