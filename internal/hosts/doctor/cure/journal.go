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

// Journal is the record of cures on disk: one line when a cure begins and one when it has
// ended. Its methods may be called from any goroutine and process. The zero value records
// nothing.
type Journal struct{ Path string }

// entry is one line.
type entry struct {
	Ended bool `json:"ended"`
	Report
}

func (j Journal) begin(r Report) error { return j.add(entry{Report: r}) }

// end writes the report of a cure that was carried out.
func (j Journal) end(r Report) error {
	if !r.Applied {
		return nil
	}
	return j.add(entry{Ended: true, Report: r})
}

// Amend records what became known of a cure after its end.
func (j Journal) Amend(r Report) error { return j.end(r) }

func (j Journal) add(e entry) error {
	if j.Path == "" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(j.Path), 0o700)
	if err == nil {
		err = j.file().Append(e)
	}
	if err != nil {
		return fmt.Errorf("record the cure: %w", err)
	}
	return nil
}

func (j Journal) file() journal.File { return journal.File{Path: j.Path, Max: maxJournal} }

// interrupted is the status of a cure that began and did not end.
const interrupted = "the cure has not ended: it is still running, or its process was killed and a guardian undid its changes"

// List returns the cures that were carried out, the newest first, at most limit (0: all
// that are stored). Lines that are not records are left out.
func (j Journal) List(limit int) ([]Report, error) {
	if limit < 0 {
		return nil, fmt.Errorf("limit is %d, it must be at least 0", limit)
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
