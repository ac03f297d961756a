package labtest

import (
	"os"
	"path/filepath"
	"testing"
)

// RunscRuntime is the name of runsc in engines with RunscArgs.
const RunscRuntime = "runsc"

// Runsc returns the path of gVisor's runsc, which packaging/dev/runsc.sh builds. The test
// fails if it is missing.
func Runsc(t testing.TB) string {
	t.Helper()
	needLab(t)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "holdfast-test", "runsc", "runsc")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; packaging/dev/runsc.sh builds it", err)
	}
	return path
}

// RunscArgs returns the arguments of an engine with runsc and checkpoints.
func RunscArgs(t testing.TB) []string {
	t.Helper()
	return []string{"--experimental", "--add-runtime=" + RunscRuntime + "=" + Runsc(t)}
}
