// Package replace gives sessions new containers in a rolling way: a few sessions at a
// time. It measures each phase of each replacement, and begins no more replacements
// after one has failed. It keeps a history of replacements, which shows slow nodes.
package replace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
)

// maxError is the maximum length of an error in the history, in bytes.
const maxError = 1024

// Fleet is the part of a fleet that a run uses. Any goroutine may call it.
type Fleet interface {
	// Owner returns the session's current record. It may return
	// holdfast.ErrNotFound.
	Owner(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error)

	// Replace ends the session and starts it again, on the same node or on
	// another one. It returns the new record once the session is ready. It calls
	// down when the session stops being ready, once and from any goroutine. If it
	// does not call down, the time counts from the call of Replace. It returns an
	// error when ctx is done, and soon after its agent begins to shut down.
	Replace(ctx context.Context, key holdfast.SessionKey, down func()) (holdfast.Owner, error)
}

// Options select the sessions to replace, and limit the run.
type Options struct {
	Keys     []holdfast.SessionKey // in this order, each once
	Parallel int                   // at a time, at least 1
	Timeout  time.Duration         // for one session, over 0
	History  *History              // receives the rows; nil: no history
}

// Progress is called twice for each session: when its replacement begins, with only
// Key, Template, From and Started, and when the replacement has ended. One goroutine at a
// time calls it, and the run waits until it returns.
type Progress func(ended bool, r holdfast.Replacement)

// Run replaces the sessions and returns when no replacement runs any more. After the
// first failure, or when ctx is done, it begins no more replacements. It waits for the
// running ones, for each at most for its timeout. progress may be nil. The report
// contains the failures.
func Run(ctx context.Context, o Options, m Fleet, progress Progress) holdfast.ReplaceReport {
	r := &run{ctx: ctx, o: o, fleet: m, progress: progress, todo: o.Keys,
		report: holdfast.ReplaceReport{Started: time.Now().UTC(), Rows: []holdfast.Replacement{}, Gone: []holdfast.SessionKey{}}}
	var workers sync.WaitGroup
	for range max(min(o.Parallel, len(r.todo)), 1) {
		workers.Go(r.work)
	}
	workers.Wait()
	r.report.Unbegun = append([]holdfast.SessionKey{}, r.todo...)
	r.report.Took = holdfast.Millis(time.Since(r.report.Started))
	return r.report
}

// run is one call of Run.
type run struct {
	ctx      context.Context // of the caller; when it is done, no replacement begins
	o        Options
	fleet    Fleet
	progress Progress

	mu     sync.Mutex // also held while progress is called
	todo   []holdfast.SessionKey
	failed bool
	report holdfast.ReplaceReport
}

func (r *run) work() {
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		r.one(key)
	}
}

func (r *run) next() (holdfast.SessionKey, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed || r.ctx.Err() != nil || len(r.todo) == 0 {
		return "", false
	}
	key := r.todo[0]
	r.todo = r.todo[1:]
	return key, true
}

// one replaces one session. A replacement that has begun does not end with the caller's
// context, only with its own timeout: a partial replacement leaves the session down.
func (r *run) one(key holdfast.SessionKey) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), r.o.Timeout)
	defer cancel()
	row := holdfast.Replacement{Key: key, Started: time.Now().UTC()}
	before, err := r.fleet.Owner(ctx, key)
	if errors.Is(err, holdfast.ErrNotFound) {
		r.gone(key)
		return
	}
	row.From, row.Template = before.Node, before.Template
	if err != nil {
		row.Error = cut(fmt.Errorf("finding its owner: %w", err).Error())
		r.ended(row)
		return
	}
	r.mu.Lock()
	r.tellLocked(false, row)
	r.mu.Unlock()
	var down atomic.Pointer[time.Time] // since when the session is not ready
	down.Store(new(time.Now()))
	after, err := r.fleet.Replace(ctx, key, sync.OnceFunc(func() { down.Store(new(time.Now())) }))
	row.Total = holdfast.Millis(time.Since(*down.Load()))
	switch {
	case err != nil:
		row.Error = cut(err.Error())
	case after.State != holdfast.Ready || after.Epoch <= before.Epoch:
		row.Error = fmt.Sprintf("it was replaced by %v, which is not a new session that is ready", after)
	case after.Template != before.Template:
		row.Error = fmt.Sprintf("it started on node %s from template %q, and was from %q before", after.Node, after.Template, before.Template)
	default:
		row.To, row.Epoch, row.Boot = after.Node, after.Epoch, after.Boot
	}
	r.ended(row)
}

func (r *run) gone(key holdfast.SessionKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Gone = append(r.report.Gone, key)
}

func (r *run) ended(row holdfast.Replacement) {
	err := r.o.History.Append(row)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || row.Error != ""
	r.report.Rows = append(r.report.Rows, row)
	if err != nil {
		r.report.Notice = "the history of replacements has gaps: " + cut(err.Error())
	}
	r.tellLocked(true, row)
}

func (r *run) tellLocked(ended bool, row holdfast.Replacement) {
	if r.progress != nil {
		r.progress(ended, row)
	}
}

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxError)], "") }
