package unwind

import (
	"io"
	"time"

	"holdfast/internal/platform/linux/perf/elffile"
)

// Bounds of Tables.
const (
	maxTables = 4096
	maxTotal  = 64 << 20 // bytes
	perTable  = 64 << 10 // bytes of a table besides its sections
	loadLimit = time.Second
	maxHung   = 3
)

// File is an open program or library.
type File interface {
	io.ReaderAt
	io.Closer
}

// Tables keeps the tables of files, each by a key of the caller, so that each file is read
// once. It is for one goroutine, and for one recording: it forgets nothing, and reads
// no further files when its tables take 64 MiB.
type Tables[K comparable] struct {
	byFile map[K]*Table
	bytes  int
	hung   int
}

// Known returns what Get has returned for a key. It reports false before the first call.
func (t *Tables[K]) Known(key K) (*Table, bool) {
	table, ok := t.byFile[key]
	return table, ok
}

// Get returns the tables of a file, nil if it has none. It opens the file at the first
// call for a key. A file that cannot be read within one second counts as one without
// tables, and after three of those no further file is read.
func (t *Tables[K]) Get(key K, open func() (File, error)) *Table {
	if table, ok := t.Known(key); ok {
		return table
	}
	if t.byFile == nil {
		t.byFile = make(map[K]*Table)
	}
	if t.hung >= maxHung || t.bytes >= maxTotal || len(t.byFile) >= maxTables {
		return nil
	}
	table, inTime := elffile.Bounded(loadLimit, func() *Table {
		f, err := open()
		if err != nil {
			return nil
		}
		defer f.Close()
		table, err := Load(f)
		if err != nil {
			return nil // it is walked by frame pointers
		}
		return table
	})
	if !inTime {
		t.hung++
		table = nil
	}
	t.byFile[key] = table
	if table != nil {
		table.open = open
		t.bytes += table.size() + perTable
	}
	return table
}
