package replace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
)

func row(i int) holdfast.Replacement {
	return holdfast.Replacement{Key: holdfast.SessionKey(fmt.Sprintf("k%d", i)), From: "n1", To: "n2", Boot: holdfast.Phases{Init: holdfast.Millis(i) * 1e6}}
}

func add(t *testing.T, h *History, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := h.Append(row(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// wants checks the numbers of the newest rows.
func wants(t *testing.T, h *History, limit int, numbers ...int) {
	t.Helper()
	rows, err := h.List(limit)
	if err != nil || len(rows) != len(numbers) {
		t.Fatalf("%d rows, %v, want %v", len(rows), err, numbers)
	}
	for i, n := range numbers {
		if rows[i] != row(n) {
			t.Errorf("row %d is %+v, want %+v", i, rows[i], row(n))
		}
	}
}

func TestHistoryIsKept(t *testing.T) {
	dir := t.TempDir()
	h := NewHistory(dir)
	wants(t, h, 0)
	add(t, h, 0, 3)
	wants(t, NewHistory(dir), 0, 2, 1, 0) // of another life of the agent
	wants(t, h, 2, 2, 1)
	if info, err := os.Stat(filepath.Join(dir, historyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	var none *History
	if rows, err := none.List(0); rows != nil || err != nil || none.Append(row(0)) != nil {
		t.Errorf("no history: %v, %v", rows, err)
	}
}

// The history consists of two files of bounded size, with the newest rows.
func TestHistoryIsBounded(t *testing.T) {
	dir := t.TempDir()
	h := NewHistory(dir)
	h.file.Max = 2000
	add(t, h, 0, 200)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Size() > h.file.Max {
			t.Errorf("%s has %d bytes, %v", e.Name(), info.Size(), err)
		}
	}
	rows, err := h.List(0)
	if err != nil || len(rows) < 8 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for i, r := range rows {
		if r != row(199-i) {
			t.Fatalf("row %d is %s", i, r.Key)
		}
	}
}

// A line that a host did not finish before it went down is lost. The other lines are not.
func TestHistoryOutlivesATornLine(t *testing.T) {
	for name, tail := range map[string]string{
		"half a line":       `{"key":"k9","fr`,
		"zeros":             strings.Repeat("\x00", 700),
		"rubbish and a end": "\xff\xfe\n",
		"another's line":    `{"colour":"blue"}` + "\n",
	} {
		h := NewHistory(t.TempDir())
		add(t, h, 0, 2)
		f, err := os.OpenFile(h.file.Path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(tail); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			wants(t, h, 0, 1, 0)
			add(t, h, 2, 4)
			wants(t, h, 0, 3, 2, 1, 0)
		})
	}
}
