package replace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"holdfast"
)

// Of the history, two files of at most maxFile bytes are kept: the present one
// and the one before it. A row has a few hundred bytes.
const (
	historyFile = "replacements.jsonl"
	maxFile     = 1 << 20
)

// History is a file of past replacements, one line of JSON each, of bounded
// size. Any goroutine may use it; one process at a time.
type History struct {
	path string
	max  int64
	mu   sync.Mutex
}

// NewHistory is the history in the directory dir. It reads and makes nothing.
func NewHistory(dir string) *History {
	return &History{path: filepath.Join(dir, historyFile), max: maxFile}
}

func (h *History) older() string { return h.path + ".1" }

// Append writes a row and returns when it is on the disk. A nil History keeps
// nothing.
func (h *History) Append(r holdfast.Replacement) error {
	if h == nil {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.append(append(line, '\n')); err != nil {
		return fmt.Errorf("writing %s: %w", h.path, err)
	}
	return nil
}

func (h *History) append(line []byte) error {
	f, err := os.OpenFile(h.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if size > 0 && size+int64(len(line)) > h.max {
		if err := os.Rename(h.path, h.older()); err != nil {
			return err
		}
		return h.append(line) // to a new file: once
	}
	if torn(f, size) {
		line = append([]byte{'\n'}, line...)
	}
	if _, err := f.Write(line); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if size > 0 {
		return nil
	}
	return syncDir(filepath.Dir(h.path)) // a new name
}

// torn reports whether the last line was not written to its end, which happens
// when the host goes down meanwhile.
func torn(f *os.File, size int64) bool {
	if size == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err := f.ReadAt(last, size-1)
	return err != nil || last[0] != '\n'
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// List returns past replacements, the newest first, at most limit (0: all).
// Lines that cannot be read are left out.
func (h *History) List(limit int) ([]holdfast.Replacement, error) {
	if h == nil {
		return nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []holdfast.Replacement
	for _, path := range []string{h.older(), h.path} {
		rows, err := readRows(path, 2*h.max)
		if err != nil {
			return nil, fmt.Errorf("reading past replacements: %w", err)
		}
		all = append(all, rows...)
	}
	slices.Reverse(all)
	if limit > 0 && len(all) > limit {
		all = all[:limit]
	}
	return all, nil
}

func readRows(path string, most int64) ([]holdfast.Replacement, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, err
	}
	var rows []holdfast.Replacement
	for line := range bytes.Lines(text) {
		var r holdfast.Replacement
		if json.Unmarshal(line, &r) == nil && r.Key != "" {
			rows = append(rows, r)
		}
	}
	return rows, nil
}
