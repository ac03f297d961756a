package cli

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
	"holdfast/internal/platform/tasks"
)

// Host has the settings of this host for commands if no agent answers.
type Host struct {
	DataDir string // the agent's
	RunDir  string // likewise
	Spinup  spinup.Config
	Node    string // the node's id
	Role    string // the host's purpose, for the doctor's baselines
	Cures   []schedule.Entry
	Tokens  api.TokenFiles
}

// Time limits of a Recorder. A finished command waits no longer for its record to be
// kept.
const (
	recordLimit = 8 * time.Second
	recordEach  = 100 * time.Millisecond // and this much more for each record
	tellLimit   = 2 * time.Second
	recordAgain = 200 * time.Millisecond // if another process has the store open
)

// recordAtOnce is how many records are sent concurrently: they share a sync of the
// disk.
const recordAtOnce = 16

// How long an announced spin-up counts, and how often the announcement is renewed.
const (
	underWayLife  = 10 * time.Minute
	underWayRenew = 4 * time.Minute
)

// Recorder keeps the spin-ups of a command on this host: through its agent if one runs,
// otherwise in the store in the agent's data directory. Any goroutine may call its
// methods.
type Recorder struct {
	host   func(context.Context) (Host, error)
	client *client.Client
	log    *slog.Logger
}

// recorder returns the Recorder of a command, which closes it. It is for this host,
// even if $HOLDFAST_URL names the agent of another host.
func (a *app) recorder() (*Recorder, error) {
	c, err := a.localAgent()
	if err != nil {
		return nil, err
	}
	return &Recorder{
		host: a.deps.Host, client: c,
		log: slog.New(slog.NewTextHandler(a.ui.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}, nil
}

// Close closes the connections to the agent.
func (r *Recorder) Close() { r.client.Close() }

// Begin announces that a spin-up (spinup.ForPull or ForRun) runs on this host, until
// end is called; end returns soon. Without an agent the announcement is a file for a
// collector, if a collector has made the directory for it.
func (r *Recorder) Begin(ctx context.Context, kind spinup.Kind, name string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { r.keepTelling(ctx, kind, name) })
	return func() {
		cancel()
		telling.Wait()
	}
}

// keepTelling renews the announcement of a spin-up until ctx is done, and then ends it.
func (r *Recorder) keepTelling(ctx context.Context, kind spinup.Kind, name string) {
	id := r.tell(ctx, kind, name, "")
	tick := time.NewTicker(underWayRenew)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			id = r.tell(ctx, kind, name, id)
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellLimit)
			defer cancel()
			r.end(ctx, id)
			return
		}
	}
}

// tell announces a spin-up in place of the one with the id, and returns the new id, ""
// if the announcement failed.
func (r *Recorder) tell(ctx context.Context, kind spinup.Kind, name, id string) string {
	// The end of the work does not cancel this request: without the id the announcement
	// could not be ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellLimit)
	defer cancel()
	var e underway.Entry
	err := r.withAnnounced(ctx, func(to *client.Client) (err error) {
		e, err = to.BeginSpinup(ctx, kind, name[:min(len(name), underway.MaxName)], underWayLife)
		return err
	})
	r.end(ctx, id)
	if err != nil {
		return "" // an announcement is optional: the work continues
	}
	return e.ID
}

func (r *Recorder) end(ctx context.Context, id string) {
	if id != "" {
		_ = r.withAnnounced(ctx, func(to *client.Client) error { return to.EndSpinup(ctx, id) }) // it expires on its own
	}
}

// withAnnounced calls do with the agent, or with the announcements on this host if no
// agent answers.
func (r *Recorder) withAnnounced(ctx context.Context, do func(*client.Client) error) error {
	err := do(r.client)
	if !errors.Is(err, client.ErrUnreachable) {
		return err
	}
	h, err := r.host(ctx)
	if err != nil {
		return err
	}
	here, err := h.announced()
	if err != nil {
		return err
	}
	return withParts(hostParts{Parts: api.Parts{UnderWay: here}}, do)
}

// Record keeps the records of ended spin-ups, also after ctx is done. Its error has the
// number of lost records and the first reason. The caller prints it as a warning: the
// work itself was done.
func (r *Recorder) Record(ctx context.Context, records ...spinup.Record) error {
	limit := recordLimit + time.Duration(len(records))*recordEach
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	all := newBatch(records)
	left := all
	for {
		r.record(ctx, left)
		if left = left.with(maybeLater); len(left) == 0 {
			return all.lost()
		}
		if tasks.Sleep(ctx, recordAgain) != nil {
			return all.lost()
		}
	}
}

// record tries the agent and then the store: an agent that is just starting has the
// store open and does not answer yet.
func (r *Recorder) record(ctx context.Context, b batch) {
	b.each(func(one spinup.Record) error { return r.client.AddSpinup(ctx, one) })
	here := b.with(func(err error) bool { return errors.Is(err, client.ErrUnreachable) })
	if len(here) == 0 || ctx.Err() != nil {
		return
	}
	s, err := r.openHere(ctx)
	if err != nil {
		here.each(func(spinup.Record) error { return err })
		return
	}
	here.each(func(one spinup.Record) error { return s.Append(one) })
	if err := s.Close(); err != nil {
		r.log.Warn("closing the spin-up records", "error", err) // all records are on disk
	}
}

// openHere opens the store on disk.
func (r *Recorder) openHere(ctx context.Context) (*spinup.Store, error) {
	h, err := r.host(ctx)
	if err != nil {
		return nil, err
	}
	return spinup.OpenStore(filepath.Join(h.DataDir, spinup.FileName), h.Spinup.Keep, r.log)
}
