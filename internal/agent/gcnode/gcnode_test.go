package gcnode

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"holdfast/internal/hosts/spinup/prefetch"
)

// The images that an agent keeps present stay without it, under the names that the
// engine uses. A list that cannot be read is an error, not an empty list.
func TestPrefetchedImagesAreKept(t *testing.T) {
	dir := t.TempDir()
	if names, err := keptNames(dir); err != nil || len(names) != 0 {
		t.Errorf("without a list: %v, %v", names, err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, prefetch.FileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"images": ["docker.io/library/app", "registry.example.org/base:1"]}`)
	if names, err := keptNames(dir); err != nil || !slices.Equal(names, []string{"app:latest", "registry.example.org/base:1"}) {
		t.Errorf("%v, %v", names, err)
	}
	write("{")
	if names, err := keptNames(dir); err == nil {
		t.Errorf("a broken list: %v", names)
	}
}
