package events

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/journal"
	"holdfast/internal/platform/tasks"
)

// Log is the events of a node's sessions. Any goroutine may call its methods.
type Log struct {
	node  holdfast.NodeID
	file  journal.File
	log   *slog.Logger
	fresh tasks.Signal // there are events that are not written

	mu      sync.Mutex
	ring    []holdfast.SessionEvent // without gaps, the oldest first
	last    int64                   // ID of the newest event
	written int64                   // ID of the last event in the file; subscribers see no later one
	changed chan struct{}           // closed and replaced when written grows
	readers int
	failed  bool // the last write failed
}

// OpenLog reads the events that earlier agents have kept in the directory dir. If they
// cannot be read, it logs that and begins anew.
func OpenLog(dir string, node holdfast.NodeID, log *slog.Logger) *Log {
	l := &Log{
		node: node, log: log, fresh: tasks.NewSignal(), changed: make(chan struct{}),
		file: journal.File{Path: filepath.Join(dir, logFile), Max: logBytes, NoSync: true},
	}
	rows, err := journal.Read(l.file, func(e holdfast.SessionEvent) bool { return e.ID > 0 })
	if err != nil {
		log.Warn("the events of sessions under earlier agents cannot be read", "err", err)
	}
	for _, e := range rows {
		if e.ID != l.last+1 { // a gap: a power cut, or a write that failed
			l.ring = l.ring[:0]
		}
		l.ring, l.last = append(l.ring, e), e.ID
	}
	l.ring, l.written = newest(l.ring), l.last
	return l
}

// newest returns the last ringSize events, in memory of their own if there were more.
func newest(all []holdfast.SessionEvent) []holdfast.SessionEvent {
	if len(all) < 2*ringSize {
		return all
	}
	return append([]holdfast.SessionEvent(nil), all[len(all)-ringSize:]...)
}

// Emit adds an event. It sets ID, Node and, if it is zero, At. It never waits.
func (l *Log) Emit(e holdfast.SessionEvent) {
	if e.At.IsZero() {
		e.At = time.Now().UTC()
	}
	e.Node = l.node
	l.mu.Lock()
	l.last++
	e.ID = l.last
	l.ring = newest(append(l.ring, e))
	l.mu.Unlock()
	l.fresh.Set()
}

// Run writes the events to the file and shows them to subscribers, until ctx is done. A
// subscriber sees an event only after the file has it: so no ID is used twice.
func (l *Log) Run(ctx context.Context) error {
	for {
		select {
		case <-l.fresh:
			l.write()
		case <-ctx.Done():
			l.write()
			return nil
		}
	}
}

func (l *Log) write() {
	l.mu.Lock()
	fresh, upTo := l.afterLocked(l.written), l.last
	l.mu.Unlock()
	if len(fresh) == 0 {
		return
	}
	rows := make([]any, len(fresh))
	for i, e := range fresh {
		rows[i] = e
	}
	err := l.file.Append(rows...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && !l.failed {
		l.log.Error("the next agent will not know these events of sessions: they cannot be written", "err", err)
	}
	l.failed, l.written = err != nil, upTo
	close(l.changed)
	l.changed = make(chan struct{})
}

// afterLocked returns a copy of the events after an ID.
func (l *Log) afterLocked(id int64) []holdfast.SessionEvent {
	n := min(int64(len(l.ring)), l.last-id)
	if n <= 0 {
		return nil
	}
	return append([]holdfast.SessionEvent(nil), l.ring[int64(len(l.ring))-n:]...)
}

// Begin and End are places of a reader.
const (
	Begin int64 = 0  // before the oldest event that is kept
	End   int64 = -1 // after the newest one
)

// Reader reads the events in their order. One goroutine uses it.
type Reader struct {
	l  *Log
	at int64 // ID of the last event that was read
}

// Read returns a reader of the events after the one with the ID; or Begin, or End. The
// caller closes it.
func (l *Log) Read(after int64) *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers++
	if after == End {
		after = l.written
	} else if after == Begin {
		after = l.last - int64(min(len(l.ring), ringSize))
	}
	return &Reader{l, after}
}

// Close ends the reader.
func (r *Reader) Close() {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	r.l.readers--
}

// maxRead is the number of events that one Next returns at most.
const maxRead = 256

// Next returns the next events, at most maxRead. If the reader has missed some, the first
// one is of the type lost. With wait it waits for an event, and otherwise it returns none
// if there is none. It returns ctx's error.
func (r *Reader) Next(ctx context.Context, wait bool) ([]holdfast.SessionEvent, error) {
	for {
		some, changed := r.look()
		if len(some) > 0 || !wait {
			return some, ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (r *Reader) look() (some []holdfast.SessionEvent, changed <-chan struct{}) {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.last - int64(len(l.ring)) // ID before the ring
	switch {
	case r.at > l.written: // of another log, or of one that a power cut has shortened
		some = append(some, holdfast.SessionEvent{ID: before, Type: holdfast.EventLost, Node: l.node, Lost: -1})
		r.at = before
	case r.at < before:
		some = append(some, holdfast.SessionEvent{ID: before, Type: holdfast.EventLost, Node: l.node, Lost: before - r.at})
		r.at = before
	}
	begin := r.at - before
	end := min(begin+maxRead, l.written-before)
	if begin < end {
		some = append(some, l.ring[begin:end]...)
		r.at += end - begin
	}
	return some, l.changed
}

// Readers returns the number of open readers.
func (l *Log) Readers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.readers
}
