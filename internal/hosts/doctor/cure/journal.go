package cure

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"holdfast/internal/platform/journal"
)

// FileName is the journal's name in the data directory.
const FileName = "cures.jsonl"

// Bounds of the journal.
const (
	maxJournal  = 2 << 20 // bytes of each of its two files
	keptEntries = 500
)

// Journal is the record of cures on disk: a line when one begins and one when it
// has ended. Its methods may be called from any goroutine and process. The zero
// value keeps nothing.
type Journal struct{ Path string }

// entry is one line.
type entry struct {
	Ended bool `json:"ended"`
	Report
}

func (j Journal) begin(r Report) error { return j.add(entry{Report: r}) }

// end writes a report of what was carried out.
func (j Journal) end(r Report) error {
	if !r.Applied {
		return nil
	}
	return j.add(entry{Ended: true, Report: r})
}

func (j Journal) add(e entry) error {
	if j.Path == "" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(j.Path), 0o700)
	if err == nil {
		err = j.file().Append(e)
	}
	if err != nil {
		return fmt.Errorf("write the cure down: %w", err)
	}
	return nil
}

func (j Journal) file() journal.File { return journal.File{Path: j.Path, Max: maxJournal} }

// interrupted is what is said of a cure that began and did not end.
const interrupted = "it has not ended: it is at work, or its process was killed, and a guardian undid what was to be undone"

// List returns the cures that were carried out, the newest first, at most limit
// (0: all that are kept). Lines that are no record are left out.
func (j Journal) List(limit int) ([]Report, error) {
	if limit < 0 {
		return nil, fmt.Errorf("limit is %d, it has to be 0 or more", limit)
	}
	entries, err := journal.Read(j.file(), func(e entry) bool { return e.Cure != "" })
	if err != nil {
		return nil, fmt.Errorf("read the record of cures: %w", err)
	}
	rs := []Report{}
	for _, e := range entries {
		i := slices.IndexFunc(rs, func(r Report) bool {
			return r.At.Equal(e.At) && r.Cure == e.Cure && r.Target == e.Target
		})
		if !e.Ended && e.Error == "" {
			e.Error = interrupted
		}
		if i >= 0 {
			rs[i] = e.Report
		} else {
			rs = append(rs, e.Report)
		}
	}
	slices.Reverse(rs)
	if limit == 0 {
		limit = keptEntries
	}
	return rs[:min(limit, len(rs))], nil
}
