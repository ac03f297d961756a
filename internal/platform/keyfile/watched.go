package keyfile

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Every is the shortest time between two checks of a Watched for changed files.
const Every = time.Second

// Watched is a value that is loaded from files, and loaded again when one of them has
// changed. If that fails, the last good value stays, so that a file that is
// incomplete or wrong does not stop the program. It has no goroutine: Get checks the
// files.
type Watched[T any] struct {
	paths []string
	load  func() (T, error)
	log   *slog.Logger
	value atomic.Pointer[T]

	started time.Time    // the zero point of next, on the monotonic clock
	next    atomic.Int64 // when to check again

	mu      sync.Mutex // one check at a time; guards the fields below
	seen    []os.FileInfo
	failure string // of the last check, so that it is logged once
}

// Watch loads the value. load is called again, by one goroutine at a time, when the
// inode, the modification time or the size of one of paths has changed.
func Watch[T any](log *slog.Logger, load func() (T, error), paths ...string) (*Watched[T], error) {
	w := &Watched[T]{paths: paths, load: load, log: log, started: time.Now()}
	w.seen = w.stat() // before load: a change during load is seen next time
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
	if w.failure == "" && slices.EqualFunc(w.seen, found, same) {
		return
	}
	names := strings.Join(w.paths, ", ")
	v, err := w.load()
	if err != nil {
		if w.failure != err.Error() {
			w.log.Warn("changed files cannot be used; the values read before stay in effect", "files", names, "err", err)
		}
		w.failure = err.Error() // the next check tries again
		return
	}
	w.value.Store(&v)
	w.seen, w.failure = found, ""
	w.log.Info("changed files were read", "files", names)
}

// stat returns the files' stat(2), with nil for those that fail.
func (w *Watched[T]) stat() []os.FileInfo {
	infos := make([]os.FileInfo, len(w.paths))
	for i, path := range w.paths {
		if info, err := os.Stat(path); err == nil {
			infos[i] = info
		}
	}
	return infos
}

func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && a.Mode() == b.Mode()
}
