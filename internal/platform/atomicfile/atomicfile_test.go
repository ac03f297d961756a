package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// only checks that path is the only file in its directory, with this content and
// mode.
func only(t *testing.T, path, text string, perm fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != text {
		t.Errorf("the file has %q, %v; want %q", got, err, text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != perm {
		t.Errorf("the file has mode %v, %v; want %v", info.Mode(), err, perm)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("the directory has %v, %v; want one file", files, err)
	}
}

func TestWriteReplaces(t *testing.T) {
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"Write": Write, "WriteNoSync": WriteNoSync} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			for _, c := range []struct {
				text string
				perm fs.FileMode
			}{{"first, and longer", 0o600}, {"second", 0o666}} {
				if err := write(path, []byte(c.text), c.perm); err != nil {
					t.Fatal(err)
				}
				only(t, path, c.text, c.perm)
			}
			if err := write(filepath.Join(path, "below"), nil, 0o600); err == nil {
				t.Error("a file below a file was written")
			}
		})
	}
}

func TestAbortKeepsTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("new")
	if err := errors.Join(err, f.Abort()); err != nil {
		t.Fatal(err)
	}
	only(t, path, "old", 0o600)
}

func TestFailedRenameLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced by a file")
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("the directory has %v, %v; want one entry", files, err)
	}
}
