package filenode

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"holdfast"
)

// Containers share one copy of the program, and that of another version is replaced.
func TestProgramIsShown(t *testing.T) {
	root := filepath.Join(t.TempDir(), "identity")
	one, two := filepath.Join(root, "alice@1"), filepath.Join(root, "bob@1")
	if err := errors.Join(os.MkdirAll(one, 0o755), os.MkdirAll(two, 0o755), os.WriteFile(filepath.Join(two, name), []byte("older"), 0o755), os.WriteFile(root+"."+name, []byte("older"), 0o755)); err != nil {
		t.Fatal(err)
	}
	var p Program
	for range 2 {
		for _, dir := range []string{one, two} {
			if err := p.Show(dir); err != nil {
				t.Fatal(err)
			}
			if !same(filepath.Join(dir, name), root+"."+name) {
				t.Errorf("%s has another program", dir)
			}
		}
	}
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Stat(filepath.Join(two, name)); err != nil || got.Size() != own.Size() || got.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", got, err)
	}
	if err := p.Show(filepath.Join(root, "carol@1")); !errors.Is(err, holdfast.ErrBadFile) || holdfast.HintOf(err) == "" {
		t.Errorf("a container without the directory: %v", err)
	}
}
