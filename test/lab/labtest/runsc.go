package labtest

import (
	"os"
	"path/filepath"
	"testing"
)

// RunscRuntime is the name that Runsc's engines know runsc by.
const RunscRuntime = "runsc"

// Runsc is the path of gVisor's runsc, which packaging/dev/runsc.sh builds. A test
// that needs it fails without it.
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

// RunscArgs are the arguments of a lab's engine that has runsc, and checkpoints.
func RunscArgs(t testing.TB) []string {
	t.Helper()
	return []string{"--experimental", "--add-runtime=" + RunscRuntime + "=" + Runsc(t)}
}
