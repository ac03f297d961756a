package cure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// FileName is the journal's name in the data directory.
const FileName = "cures.jsonl"

// Bounds of the journal.
const (
	maxJournal  = 4 << 20 // bytes; then the older half goes
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
	if err := j.write(e); err != nil {
		return fmt.Errorf("write the cure down: %w", err)
	}
	return nil
}

func (j Journal) write(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(j.Path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(j.Path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Size() > maxJournal {
		if err := halve(f); err != nil {
			return err
		}
	}
	// One write: a reader sees the line or not. A line that was cut off by a
	// crash before is ended.
	out := append(line, '\n')
	if n, _ := f.Seek(0, 2); n > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], n-1); err == nil && last[0] != '\n' {
			out = append([]byte{'\n'}, out...)
		}
	}
	if _, err := f.Write(out); err != nil {
		return err
	}
	return f.Sync()
}

// halve drops the older half of the lines, in place: the lock is the file's.
func halve(f *os.File) error {
	text, err := os.ReadFile(f.Name())
	if err != nil {
		return err
	}
	text = text[len(text)/2:]
	_, text, _ = bytes.Cut(text, []byte("\n"))
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.Write(text)
	return err
}

// interrupted is what is said of a cure that began and did not end.
const interrupted = "it has not ended: it is at work, or its process was killed, and a guardian undid what was to be undone"

// List returns the cures that were carried out, the newest first, at most limit
// (0: all that are kept). Lines that are no record are left out.
func (j Journal) List(limit int) ([]Report, error) {
	if limit < 0 {
		return nil, fmt.Errorf("limit is %d, it has to be 0 or more", limit)
	}
	text, err := os.ReadFile(j.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return []Report{}, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the record of cures: %w", err)
	}
	rs := []Report{}
	for line := range bytes.Lines(text) {
		var e entry
		if json.Unmarshal(line, &e) != nil || e.Cure == "" {
			continue
		}
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
