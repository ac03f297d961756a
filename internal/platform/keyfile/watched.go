package keyfile

import (
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Every is how often Watched looks whether its files have changed, at most.
const Every = time.Second

// Watched is what was made of some files. It is made anew when one of them has
// changed; where that fails, the last good value stays, so that a file that is
// being written, or was written badly, stops nobody. Nothing runs beside its
// callers: Get looks.
type Watched[T any] struct {
	paths []string
	load  func() (T, error)
	log   *slog.Logger
	value atomic.Pointer[T]

	started time.Time    // what next counts from, on the monotonic clock
	next    atomic.Int64 // when to look again

	mu      sync.Mutex // one look at a time; holds what follows
	seen    []os.FileInfo
	failure string // of the last look, so that it is logged once
}

// Watch loads the value a first time. load is called again, by one goroutine at
// a time, when a file of paths is another one than before, by its inode,
// modification time or size.
func Watch[T any](log *slog.Logger, load func() (T, error), paths ...string) (*Watched[T], error) {
	w := &Watched[T]{paths: paths, load: load, log: log, started: time.Now()}
	w.seen = w.stat() // before the reading: a change meanwhile is seen next time
	v, err := load()
	if err != nil {
		return nil, err
	}
	w.value.Store(&v)
	w.next.Store(int64(Every))
	return w, nil
}

// Get returns the value. Any goroutine may call it.
func (w *Watched[T]) Get() T {
	now := int64(time.Since(w.started))
	if now >= w.next.Load() && w.mu.TryLock() {
		w.next.Store(now + int64(Every))
		w.refresh()
		w.mu.Unlock()
	}
	return *w.value.Load()
}

func (w *Watched[T]) refresh() {
	found := w.stat()
	if w.failure == "" && same(w.seen, found) {
		return
	}
	names := strings.Join(w.paths, ", ")
	v, err := w.load()
	if err != nil {
		if w.failure != err.Error() {
			w.log.Warn("files have changed and cannot be used; what was read before still counts", "files", names, "err", err)
		}
		w.failure = err.Error() // and try again next time
		return
	}
	w.value.Store(&v)
	w.seen, w.failure = found, ""
	w.log.Info("files were read anew", "files", names)
}

// stat has a nil for what cannot be looked at.
func (w *Watched[T]) stat() []os.FileInfo {
	infos := make([]os.FileInfo, len(w.paths))
	for i, path := range w.paths {
		if info, err := os.Stat(path); err == nil {
			infos[i] = info
		}
	}
	return infos
}

func same(a, b []os.FileInfo) bool {
	for i := range a {
		if a[i] == nil || b[i] == nil {
			if a[i] != b[i] {
				return false
			}
			continue
		}
		if !os.SameFile(a[i], b[i]) || !a[i].ModTime().Equal(b[i].ModTime()) || a[i].Size() != b[i].Size() || a[i].Mode() != b[i].Mode() {
			return false
		}
	}
	return true
}
