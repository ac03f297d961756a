package cli

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"holdfast/internal/control/api/client"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
)

// Host is what commands that work on this host need to know of it when no agent
// answers.
type Host struct {
	DataDir string // the agent's
	RunDir  string // likewise
	Spinup  spinup.Config
	Node    string // its id
	Role    string // what it is for, as the doctor's baselines are kept by it
}

// thisHost asks the assembler, or takes the defaults.
func (a *app) thisHost(ctx context.Context) (Host, error) {
	if a.deps.Host != nil {
		return a.deps.Host(ctx)
	}
	c := config.Default()
	return Host{DataDir: c.DataDir, RunDir: c.RunDir, Spinup: c.Spinup}, nil
}

// Bounds of a Recorder's patience. A command that has done its work does not
// wait longer for the keeping of its record.
const (
	recordLimit = 8 * time.Second
	recordEach  = 100 * time.Millisecond // and as much longer for each
	tellLimit   = 2 * time.Second
	recordAgain = 200 * time.Millisecond // when somebody else has the store open
)

// recordAtOnce is how many records are handed on at the same time: those share a
// sync of the disk.
const recordAtOnce = 16

// How long a spin-up counts as under way without a word, and how often there is
// one.
const (
	underWayLife  = 10 * time.Minute
	underWayRenew = 4 * time.Minute
)

// Recorder keeps the spin-ups that a command does on this host: by its agent
// where one runs, else in the store in the agent's data directory. Its methods
// may be called from any goroutine.
type Recorder struct {
	host   func(context.Context) (Host, error)
	client *client.Client
	log    *slog.Logger
}

// recorder is the Recorder of a command, to be closed by it. It is always about
// this host, also where $HOLDFAST_URL names another's agent.
func (a *app) recorder() (*Recorder, error) {
	socket := a.givenSocket()
	if socket == "" {
		socket = DefaultSocket
	}
	c, err := client.New(client.Options{Socket: socket})
	if err != nil {
		return nil, err
	}
	return &Recorder{
		host: a.thisHost, client: c,
		log: slog.New(slog.NewTextHandler(a.ui.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}, nil
}

// Close drops the connections to the agent.
func (r *Recorder) Close() { r.client.Close() }

// Begin says that a spin-up (spinup.ForPull or ForRun) is under way on this
// host, until end is called; end returns soon. Without an agent it is noted for a
// collector, where one has made the directory for that.
func (r *Recorder) Begin(ctx context.Context, kind spinup.Kind, name string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { r.keepTelling(ctx, kind, name) })
	return func() {
		cancel()
		telling.Wait()
	}
}

// keepTelling announces a spin-up anew until ctx is done, and then ends it.
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

// tell announces a spin-up in the place of the one with the id, and returns the
// new one's, "" where nobody took it.
func (r *Recorder) tell(ctx context.Context, kind spinup.Kind, name, id string) string {
	// Not cut off by the end of the work: an id that is not known could not
	// be ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellLimit)
	defer cancel()
	var e underway.Entry
	err := r.toWhom(ctx, func(to underWay) (err error) {
		e, err = to.BeginSpinup(ctx, kind, name[:min(len(name), underway.MaxName)], underWayLife)
		return err
	})
	r.end(ctx, id)
	if err != nil {
		return "" // it is courtesy: the work goes on without
	}
	return e.ID
}

func (r *Recorder) end(ctx context.Context, id string) {
	if id != "" {
		_ = r.toWhom(ctx, func(to underWay) error { return to.EndSpinup(ctx, id) }) // it ends by itself, later
	}
}

// toWhom calls do with the agent, or where none answers with the announcements on
// this host.
func (r *Recorder) toWhom(ctx context.Context, do func(underWay) error) error {
	err := do(r.client)
	if !errors.Is(err, client.ErrUnreachable) {
		return err
	}
	h, err := r.host(ctx)
	if err != nil {
		return err
	}
	here, err := h.underWayHere()
	if err != nil {
		return err
	}
	return do(here)
}

// Record keeps the records of spin-ups that have ended, also after ctx is done. An
// error says how many are lost, and why the first one is. Who gets it says it as a
// warning; the work itself was done.
func (r *Recorder) Record(ctx context.Context, records ...spinup.Record) error {
	limit := recordLimit + time.Duration(len(records))*recordEach
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	b := newBatch(records)
	for {
		r.record(ctx, b)
		if !b.again() {
			return b.lost()
		}
		select {
		case <-time.After(recordAgain):
		case <-ctx.Done():
			return b.lost()
		}
	}
}

// record tries the agent and the store in turn: one that is just starting has
// the store open and does not answer yet.
func (r *Recorder) record(ctx context.Context, b *batch) {
	b.each(b.left, func(one spinup.Record) error { return r.client.AddSpinup(ctx, one) })
	here := b.which(func(err error) bool { return errors.Is(err, client.ErrUnreachable) })
	if len(here) == 0 || ctx.Err() != nil {
		return
	}
	s, err := r.openHere(ctx)
	if err != nil {
		b.each(here, func(spinup.Record) error { return err })
		return
	}
	b.each(here, s.Append)
	if err := s.Close(); err != nil {
		r.log.Warn("closing the spin-up records", "error", err) // all are on disk
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
