package spinup

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast"
)

// fill makes a file of n records that are days old, and returns its content.
func fill(t *testing.T, path string, n int) []byte {
	t.Helper()
	s, err := OpenStore(path, Keep{Count: n, Age: 1000 * time.Hour}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := s.Append(record(time.Now().Add(time.Duration(i-1000)*time.Minute), "x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return read(t, path)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Several processes read at once, also on a read-only file system. The file does not
// change.
func TestReadingChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spinup.db")
	before := fill(t, path, 20)
	for range 2 {
		s, err := ReadStore(path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got, err := s.List(Filter{}); err != nil || len(got) != 20 {
			t.Errorf("%d records, %v", len(got), err)
		}
		if err := s.Append(record(time.Now(), "new")); err == nil {
			t.Error("a record was added")
		}
	}
	if !bytes.Equal(read(t, path), before) {
		t.Error("the file has changed")
	}
}

// While an agent has the file open for writing, readers get ErrInUse.
func TestReadingWaitsForTheWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spinup.db")
	open(t, path, DefaultKeep())
	if s, err := ReadStore(path); !errors.Is(err, ErrInUse) || holdfast.HintOf(err) == "" {
		t.Errorf("%v, %v", s, err)
	}
}

// A file that cannot be read is not moved.
func TestReadingWhatIsNone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "spinup.db")
	if s, err := ReadStore(path); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("no file: %v, %v", s, err)
	}
	damaged := fill(t, path, 20)
	damaged = damaged[:len(damaged)/2/4096*4096]
	for _, data := range [][]byte{nil, damaged, []byte("these are no records\n")} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := ReadStore(path)
		if err == nil || len(data) > 0 == (holdfast.HintOf(err) == "") {
			t.Errorf("%d bytes: %v, %v", len(data), s, err)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != 1 || !bytes.Equal(read(t, path), data) {
			t.Errorf("%d bytes: %v, %v", len(data), files, err)
		}
	}
}
