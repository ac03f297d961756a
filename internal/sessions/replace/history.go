package replace

import (
	"fmt"
	"path/filepath"
	"slices"

	"holdfast"
	"holdfast/internal/platform/journal"
)

// The history's file in the data directory. The journal has two files of at most maxFile
// bytes: the current one and the one before it. A row has a few hundred bytes.
const (
	historyFile = "replacements.jsonl"
	maxFile     = 1 << 20
)

// History is a journal of past replacements. Any goroutine may use it.
type History struct{ file journal.File }

// NewHistory returns the history in the directory dir. It does not access the disk.
func NewHistory(dir string) *History {
	return &History{journal.File{Path: filepath.Join(dir, historyFile), Max: maxFile}}
}

// Append writes a row and returns when it is on the disk. A nil History keeps
// nothing.
func (h *History) Append(r holdfast.Replacement) error {
	if h == nil {
		return nil
	}
	if err := h.file.Append(r); err != nil {
		return fmt.Errorf("writing %s: %w", h.file.Path, err)
	}
	return nil
}

// List returns past replacements, the newest first, at most limit (0: all). It
// leaves out lines that cannot be read.
func (h *History) List(limit int) ([]holdfast.Replacement, error) {
	if h == nil {
		return nil, nil
	}
	all, err := journal.Read(h.file, func(r holdfast.Replacement) bool { return r.Key != "" })
	if err != nil {
		return nil, fmt.Errorf("reading past replacements: %w", err)
	}
	slices.Reverse(all)
	if limit > 0 && len(all) > limit {
		all = all[:limit]
	}
	return all, nil
}
