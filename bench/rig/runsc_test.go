package rig

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCheckRunsc(t *testing.T) {
	dir := t.TempDir()
	program, text := filepath.Join(dir, "runsc"), filepath.Join(dir, "text")
	for file, mode := range map[string]os.FileMode{program: 0o755, text: 0o644} {
		if err := os.WriteFile(file, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := CheckRunsc(program); err != nil {
		t.Errorf("an executable file: %v", err)
	}
	for _, path := range []string{"", "runsc", dir, text, filepath.Join(dir, "none")} {
		if CheckRunsc(path) == nil {
			t.Errorf("%q passes", path)
		}
	}
}
