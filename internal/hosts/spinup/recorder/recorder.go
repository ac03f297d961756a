package recorder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/metric"
)

const (
	queueLen      = 4096            // records that wait to be written
	batchLen      = 64              // records that are written with one sync
	openInterval  = 2 * time.Second // between attempts to open a store that a command uses
	flushInterval = 10 * time.Second
)

// Options configure a Recorder.
type Options struct {
	File string // of the store
	spinup.Config
	// Shared opens the store only while records are written, every ten seconds.
	Shared  bool
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Recorder records spin-ups. Its methods may be called from any goroutine.
type Recorder struct {
	o       Options
	metrics *spinup.Metrics
	lost    prometheus.Counter
	log     *slog.Logger
	queue   chan *spinup.Record

	// Collected reports whether garbage was deleted during a spin-up, nil: unknown.
	// Suspect is called for spin-ups that this host made slow, nil: not called. Both
	// are set before Run.
	Collected func(r spinup.Record, slow bool) bool
	Suspect   func()
	// Arms returns the arms of a spin-up, nil: there are no experiments. It is set before
	// Run.
	Arms func(r spinup.Record) map[string]string

	mu    sync.RWMutex // held for reading while the store is used
	store *spinup.Store

	recentMu sync.Mutex
	recent   []spinup.Record // of the last day, the latest last
}

// New returns a Recorder. If the store cannot be opened now, Run tries again.
func New(o Options) *Recorder {
	r := &Recorder{
		o: o, metrics: spinup.NewMetrics(o.Metrics, o.Slow), log: o.Log, queue: make(chan *spinup.Record, queueLen),
		lost: metric.Registry{Registerer: o.Metrics}.Counter("holdfast_spinup_records_lost_total", "Records of spin-ups that could not be written."),
	}
	if !o.Shared {
		r.open()
	} else if err := r.with(r.loadRecent); err != nil {
		r.log.Warn("the records of spin-ups cannot be read", "err", err)
	}
	return r
}

// Record records a spin-up that has ended. It does not block: Run writes the record.
func (r *Recorder) Record(s spinup.Record) {
	s.Collected, s.Arms = r.collected(s), r.arms(s)
	s = s.Bounded()
	r.observe(s)
	select {
	case r.queue <- &s:
	default:
		r.lose(errors.New("too many records wait to be written"), s)
	}
}

// Add records a spin-up that another process has measured, and returns when it is
// written. It returns holdfast.ErrBusy while the store is not open.
func (r *Recorder) Add(s spinup.Record) error {
	s.Collected, s.Arms = r.collected(s), r.arms(s)
	if err := r.with(func(store *spinup.Store) error { return store.Append(s) }); err != nil {
		return err
	}
	r.observe(s)
	return nil
}

func (r *Recorder) collected(s spinup.Record) bool {
	return r.Collected != nil && r.Collected(s, len(r.o.Slow.Slow(s)) > 0)
}

func (r *Recorder) arms(s spinup.Record) map[string]string {
	if r.Arms == nil {
		return nil
	}
	return r.Arms(s)
}

// observe counts, remembers and logs a spin-up.
func (r *Recorder) observe(s spinup.Record) {
	r.metrics.Observe(s)
	r.remember(s)
	slow := r.o.Slow.Slow(s)
	level, text := slog.LevelDebug, "spin-up"
	switch {
	case len(slow) > 0:
		level, text = slog.LevelWarn, "slow spin-up"
	case s.Kind == spinup.ForSession:
		level = slog.LevelInfo
	}
	attrs := []any{"id", s.ID, "kind", s.Kind, "image", s.Image, "outcome", s.Outcome, "took", s.Took, "phases", strings.Join(s.Lines(), "; ")}
	if s.Kind == spinup.ForPod {
		attrs = []any{"id", s.ID, "pod", s.Job, "container", s.Name, "image", s.Image, "outcome", s.Outcome, "took", s.Took, "phases", strings.Join(s.Lines(), "; ")}
	} else if s.Job != "" {
		attrs = append(attrs, "job", s.Job)
	}
	if len(slow) > 0 {
		attrs = append(attrs, "slow", slow)
	}
	if r.Suspect != nil && slices.ContainsFunc(slow, func(p spinup.Phase) bool { return p != spinup.Download }) {
		r.Suspect()
	}
	if s.Error != "" {
		attrs = append(attrs, "failed_in", s.Failed, "cause", s.Cause, "error", s.Error)
	}
	r.log.Log(context.Background(), level, text, attrs...)
}

func (r *Recorder) lose(err error, list ...spinup.Record) {
	for _, s := range list {
		r.lost.Inc()
		r.log.Warn("the record of a spin-up is lost", "id", s.ID, "image", s.Image, "err", err)
	}
}

// open tries to open the store.
func (r *Recorder) open() {
	store, err := spinup.OpenStore(r.o.File, r.o.Keep, r.log)
	if err != nil {
		r.log.Warn("the records of spin-ups cannot be opened; trying again", "err", err)
		return
	}
	if err := r.loadRecent(store); err != nil {
		r.log.Warn("the records of spin-ups cannot be read", "err", err)
	}
	r.mu.Lock()
	r.store = store
	r.mu.Unlock()
}

func (r *Recorder) opened() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.store != nil
}

// errNotOpen wraps ErrBusy because the caller may try again: Run opens the store
// later, and the store of an agent that ends is soon free for other processes.
var errNotOpen = fmt.Errorf("the records of spin-ups are not open: %w", holdfast.ErrBusy)

// with calls do with the store. It returns holdfast.ErrBusy while the store is not open.
func (r *Recorder) with(do func(*spinup.Store) error) error {
	if r.o.Shared {
		store, err := spinup.OpenStore(r.o.File, r.o.Keep, r.log)
		if err != nil {
			return err
		}
		return errors.Join(do(store), store.Close())
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.store == nil {
		return holdfast.WithHint(errNotOpen, "the agent's log says why")
	}
	return do(r.store)
}

// List implements api.Spinups. It omits the layers of pulls.
func (r *Recorder) List(f spinup.Filter) (list []spinup.Record, err error) {
	err = r.with(func(store *spinup.Store) error {
		list, err = store.List(f)
		return err
	})
	for _, s := range list {
		if s.Pull != nil {
			s.Pull.Layers = nil
		}
	}
	return list, err
}

// Get implements api.Spinups.
func (r *Recorder) Get(id string) (s spinup.Record, err error) {
	err = r.with(func(store *spinup.Store) error {
		s, err = store.Get(id)
		return err
	})
	return s, err
}

// Report implements api.Spinups.
func (r *Recorder) Report(q spinup.Question) (report spinup.Report, err error) {
	err = r.with(func(store *spinup.Store) error {
		report, err = store.Report(q, r.o.Slow)
		return err
	})
	return report, err
}

// Sketch implements api.Spinups.
func (r *Recorder) Sketch(q spinup.Question) (sketch spinup.Sketch, err error) {
	err = r.with(func(store *spinup.Store) error {
		sketch, err = store.Sketch(q, r.o.Slow)
		return err
	})
	return sketch, err
}

// Rules implements api.Spinups.
func (r *Recorder) Rules() spinup.Rules { return r.o.Slow }

// Run writes records until ctx is done, and closes the store. Records of spin-ups
// that end later are lost.
func (r *Recorder) Run(ctx context.Context) error {
	if r.o.Shared {
		return r.runShared(ctx)
	}
	for {
		queue := r.queue
		var again <-chan time.Time
		if !r.opened() {
			queue, again = nil, time.After(openInterval) // the records wait for the store
		}
		select {
		case s := <-queue:
			r.write(*s)
		case <-again:
			if !r.opened() {
				r.open()
			}
		case <-ctx.Done():
			for len(r.queue) > 0 {
				r.write(*<-r.queue)
			}
			return r.close()
		}
	}
}

// write writes a record and those that wait in the queue, with one sync.
func (r *Recorder) write(s spinup.Record) {
	batch := []spinup.Record{s}
	for len(batch) < batchLen && len(r.queue) > 0 {
		batch = append(batch, *<-r.queue) // the only receiver
	}
	if err := r.with(func(store *spinup.Store) error { return store.Append(batch...) }); err != nil {
		r.lose(err, batch...)
	}
}

func (r *Recorder) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.store == nil {
		return nil
	}
	store := r.store
	r.store = nil
	if err := store.Close(); err != nil {
		return fmt.Errorf("close the records of spin-ups: %w", err)
	}
	return nil
}
