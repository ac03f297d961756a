package session

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/metric"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// Restores lets this node claim again after its store was restored from a backup. The
// store refuses claims from the moment in which it notices. Meanwhile each node kills
// the containers that have no record (checkOwnership), and raises the epochs over those
// that it has seen.
type Restores struct {
	store  store.Store
	file   string        // keeps what was seen, for the next agent
	hold   time.Duration // see NewRestores
	log    *slog.Logger
	number prometheus.Counter
}

// NewRestores returns a Restores that keeps in a file what the store was seen at. hold
// is the time from the notice of a restore until this node claims. By then every other
// node has noticed it too, or has lost its lease and is dead: the TTL of a lease. It is
// 0 for a store that no other node uses.
func NewRestores(s store.Store, file string, hold time.Duration, reg prometheus.Registerer, log *slog.Logger) *Restores {
	return &Restores{store: s, file: file, hold: hold, log: log, number: metric.Registry{Registerer: reg}.
		Counter("holdfast_store_restores_total", "Restores of the store from a backup that this node has noticed.")}
}

// Load tells the store what an earlier agent has seen. It is called before Run, and
// before the first claim.
func (r *Restores) Load() {
	text, err := os.ReadFile(r.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var seen store.Seen
	if err == nil {
		err = json.Unmarshal(text, &seen)
	}
	if err != nil {
		r.log.Error("a restore of the store since the last agent is not noticed: the file with what it saw cannot be read", "file", r.file, "err", err)
		return
	}
	r.store.Remember(seen)
}

const (
	restorePoll = time.Second      // between looks at what the store has noticed
	seenEvery   = 10 * time.Second // between writes of the file
)

// Run follows the store until ctx is done.
func (r *Restores) Run(ctx context.Context) error {
	var kept store.Seen
	last := time.Time{}
	for {
		seen := r.store.Seen()
		if seen.Restored {
			r.resume(ctx, seen)
			kept, last = seen, time.Time{}
		} else if seen != kept && time.Since(last) > seenEvery {
			r.keep(seen)
			kept, last = seen, time.Now()
		}
		select {
		case <-tasks.Tick(restorePoll):
		case <-ctx.Done():
			r.keep(r.store.Seen())
			return nil
		}
	}
}

// keep writes the file.
func (r *Restores) keep(seen store.Seen) {
	text, err := json.Marshal(seen)
	if err == nil {
		err = atomicfile.Write(r.file, append(text, '\n'), 0o600)
	}
	if err != nil {
		r.log.Error("keeping what was seen of the store", "err", err)
	}
}

// resume waits and then lets the store accept claims.
func (r *Restores) resume(ctx context.Context, seen store.Seen) {
	r.log.Error("the store was restored from a backup: sessions without a record are killed, and nothing is claimed for a while", "for", r.hold, "epochs over", seen.Epoch)
	r.number.Inc()
	r.keep(seen) // the next agent waits too
	begun := time.Now()
	r.retry(ctx, "raising the epochs", r.store.RaiseEpochs)
	if tasks.Sleep(ctx, time.Until(begun.Add(r.hold))) != nil {
		return
	}
	r.retry(ctx, "resuming after a restore of the store", r.store.Resume)
	if ctx.Err() == nil {
		r.log.Info("this node claims sessions again")
	}
}

// retry calls f until it succeeds or ctx is done.
func (r *Restores) retry(ctx context.Context, what string, f func(context.Context) error) {
	for range attempts(ctx) {
		limited, cancel := context.WithTimeout(ctx, claimTimeout)
		err := f(limited)
		cancel()
		if err == nil {
			return
		}
		r.log.Warn(what+" (will be tried again)", "err", err)
	}
}
