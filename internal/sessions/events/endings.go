package events

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/journal"
)

// Endings is how the epochs of sessions ended within the last day, as far as this node
// knows. Any goroutine may call its methods.
type Endings struct {
	file journal.File
	log  *slog.Logger

	mu     sync.Mutex
	kept   []row // the oldest first
	bytes  int   // of kept
	inFile int   // bytes in the file
	failed bool  // the last write failed
}

type row struct {
	holdfast.Ending
	bytes int
}

// OpenEndings reads the endings that earlier agents have kept in the directory dir. If
// they cannot be read, it logs that and begins anew.
func OpenEndings(dir string, log *slog.Logger) *Endings {
	h := &Endings{file: journal.File{Path: filepath.Join(dir, endingsFile), Max: fileLimit, NoSync: true}, log: log}
	rows, err := journal.Read(h.file, func(e holdfast.Ending) bool { return e.Key != "" && !e.At.IsZero() })
	if err != nil {
		log.Warn("the ends of sessions under earlier agents cannot be read", "err", err)
	}
	for _, e := range rows {
		if h.addLocked(e) {
			h.inFile += h.kept[len(h.kept)-1].bytes
		}
	}
	h.trimLocked(time.Now())
	return h
}

// Add keeps endings and returns those that are new. When it returns, they survive the end
// of the agent. An epoch has one ending: the first one, but that of the epoch's own node
// replaces that of another node. If the file cannot be written, Add logs that and keeps
// them in memory only.
func (h *Endings) Add(some ...holdfast.Ending) []holdfast.Ending {
	h.mu.Lock()
	defer h.mu.Unlock()
	var added []holdfast.Ending
	for _, e := range some {
		if e = bounded(e); h.addLocked(e) {
			added = append(added, e)
		}
	}
	if len(added) == 0 {
		return nil
	}
	rows := make([]any, len(added))
	for i, e := range added {
		rows[i] = e
		h.inFile += h.kept[len(h.kept)-len(added)+i].bytes
	}
	err := h.file.Append(rows...)
	h.trimLocked(time.Now())
	if err == nil && h.inFile > rewriteAt {
		err = h.rewriteLocked()
	}
	if err != nil && !h.failed {
		h.log.Error("the next agent will not know why these sessions ended: it cannot be written", "err", err)
	}
	h.failed = err != nil
	return added
}

// Has reports whether the ending of an epoch is kept, by the epoch's own node.
func (h *Endings) Has(key holdfast.SessionKey, epoch holdfast.Epoch) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := h.indexLocked(key, epoch)
	return i >= 0 && h.kept[i].SeenBy == ""
}

// List returns the endings of a key, or of all keys for "": the newest first, at most
// limit (0: all).
func (h *Endings) List(key holdfast.SessionKey, limit int) []holdfast.Ending {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trimLocked(time.Now())
	out := []holdfast.Ending{}
	for _, r := range slices.Backward(h.kept) {
		if limit > 0 && len(out) == limit {
			break
		}
		if key == "" || r.Key == key {
			out = append(out, r.Ending)
		}
	}
	return out
}

// indexLocked returns the place of an epoch's ending, -1 if there is none. Boots that have
// not claimed have no epoch, and are distinct.
func (h *Endings) indexLocked(key holdfast.SessionKey, epoch holdfast.Epoch) int {
	if epoch == 0 {
		return -1
	}
	return slices.IndexFunc(h.kept, func(r row) bool { return r.Epoch == epoch && r.Key == key })
}

// addLocked adds an ending, unless that of its epoch is known.
func (h *Endings) addLocked(e holdfast.Ending) bool {
	if i := h.indexLocked(e.Key, e.Epoch); i >= 0 {
		if h.kept[i].SeenBy == "" || e.SeenBy != "" {
			return false
		}
		h.bytes -= h.kept[i].bytes
		h.kept = slices.Delete(h.kept, i, i+1)
	}
	text, err := json.Marshal(e)
	if err != nil { // cannot fail: it has strings, numbers and times of this century
		h.log.Error("an ending cannot be encoded", "session", e.Key, "err", err)
	}
	h.kept = append(h.kept, row{e, len(text) + 1})
	h.bytes += len(text) + 1
	return true
}

// trimLocked forgets what is too old or too much.
func (h *Endings) trimLocked(now time.Time) {
	ofKey := map[holdfast.SessionKey]int{}
	bytes, n, keep := 0, 0, make([]row, 0, len(h.kept))
	for _, r := range slices.Backward(h.kept) {
		if now.Sub(r.At) > keepEndings || ofKey[r.Key] == maxOfKey {
			continue
		}
		if n == maxEndings || bytes+r.bytes > maxBytes {
			break
		}
		ofKey[r.Key]++
		n++
		bytes += r.bytes
		keep = append(keep, r)
	}
	slices.Reverse(keep)
	h.kept, h.bytes = keep, bytes
}

// rewriteLocked writes the file with what is kept.
func (h *Endings) rewriteLocked() error {
	rows := make([]any, len(h.kept))
	for i, r := range h.kept {
		rows[i] = r.Ending
	}
	if err := h.file.Replace(rows...); err != nil {
		return fmt.Errorf("writing %s anew: %w", h.file.Path, err)
	}
	h.inFile = h.bytes
	return nil
}

// bounded returns an ending within its bounds.
func bounded(e holdfast.Ending) holdfast.Ending {
	e.Error = strings.ToValidUTF8(e.Error[:min(len(e.Error), holdfast.MaxEndError)], "�")
	e.Log = LastLines(e.Log)
	if m := e.Memory; m != nil && len(m.Samples) > holdfast.MaxSamples {
		cut := *m
		cut.Samples = m.Samples[len(m.Samples)-holdfast.MaxSamples:]
		e.Memory = &cut
	}
	return e
}

// LastLines returns the last lines of a text, as many as an Ending keeps.
func LastLines(text string) string {
	text = text[max(0, len(text)-holdfast.MaxEndLog):]
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	lines = lines[max(0, len(lines)-holdfast.MaxEndLines):]
	return strings.ToValidUTF8(strings.Join(lines, ""), "�")
}
