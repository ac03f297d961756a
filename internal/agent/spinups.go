package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/others"
	"holdfast/internal/hosts/spinup/underway"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/sessions/netpool"
	"holdfast/internal/sessions/session"
)

// Bounds of the keeping of records.
const (
	recordQueue  = 4096             // records that wait for the disk
	recordBatch  = 64               // written at once, with one sync
	openAgain    = 2 * time.Second  // when a command has the store open
	infoTimeout  = 10 * time.Second // for the engine to say what it is
	otherLife    = 2 * time.Minute  // that somebody's created container counts as under way
	bootUnderWay = underway.MaxLife // and a boot, whose parts have limits of their own
)

// spinups keeps the records of this host's spin-ups, and knows which are under
// way.
type spinups struct {
	path    string
	host    string
	cfg     spinup.Config
	engine  engine.Engine
	metrics *spinup.Metrics
	lost    prometheus.Counter
	log     *slog.Logger

	list   *underway.List
	cohort atomic.Pointer[spinup.Cohort]
	root   atomic.Pointer[string] // the engine's data root
	stale  chan struct{}          // gets one when the engine may be another
	queue  chan spinup.Record

	mu    sync.RWMutex // held for reading while the store is used
	store *spinup.Store

	// collected reports whether garbage was deleted in a spin-up's window;
	// nil where nobody knows.
	collected func(r spinup.Record, slow bool) bool
	// suspect is told of spin-ups that this host was slow with; nil: nobody is.
	suspect func()
}

// newSpinups opens the records. Where they cannot be opened Run tries again:
// sessions go on without.
func (a *Agent) newSpinups(info engine.Info) *spinups {
	s := &spinups{
		path: filepath.Join(a.cfg.DataDir, spinup.FileName), host: string(a.node), cfg: a.cfg.Spinup, engine: a.engine,
		metrics: spinup.NewMetrics(a.metrics, a.cfg.Spinup.Slow), log: a.log,
		lost:  newRecordsLost(),
		list:  newUnderWay(a.cfg.RunDir, a.log),
		stale: make(chan struct{}, 1), queue: make(chan spinup.Record, recordQueue),
	}
	s.setEngine(info)
	a.metrics.MustRegister(s.lost)
	countUnderWay(a.metrics, s.list)
	s.open()
	return s
}

func newRecordsLost() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_spinup_records_lost_total", Help: "Records of spin-ups that could not be kept."})
}

// newUnderWay is what is under way on this host, with what is announced in the run
// directory.
func newUnderWay(runDir string, log *slog.Logger) *underway.List {
	list := underway.New(boottime.Now)
	leases, err := underway.OpenLeases(filepath.Join(runDir, underway.DirName), boottime.Now)
	if err == nil {
		list.Include(leases)
		err = leases.Make()
	}
	if err != nil {
		log.Warn("spin-ups that other tools announce count in this process only", "err", err)
	}
	return list
}

// countUnderWay registers the number of what is under way.
func countUnderWay(reg prometheus.Registerer, list *underway.List) {
	for _, kind := range append(spinup.Kinds(), underway.Outside) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_spinups_under_way", Help: "Spin-ups that have begun and not ended, by kind (session, pull, run, other, pod, outside).",
			ConstLabels: prometheus.Labels{"kind": string(kind)},
		}, func() float64 { return float64(list.Counts()[string(kind)]) }))
	}
}

// setEngine takes what the engine is now.
func (s *spinups) setEngine(info engine.Info) {
	c := spinup.NewCohort(s.host, info, spinup.HasUnpigz())
	s.cohort.Store(&c)
	s.root.Store(&info.DataRoot)
}

// Cohort implements session.Spinups.
func (s *spinups) Cohort() spinup.Cohort { return *s.cohort.Load() }

var _ session.Spinups = (*spinups)(nil)

// Begin implements session.Spinups.
func (s *spinups) Begin(kind spinup.Kind, name string) (end func()) {
	life := bootUnderWay
	if kind == spinup.ForOther {
		life = otherLife
	}
	e, err := s.list.Begin(string(kind), name[:min(len(name), underway.MaxName)], life)
	if err != nil {
		s.log.Debug("a spin-up does not count as under way", "kind", kind, "name", name, "err", err)
		return func() {}
	}
	return func() { _ = s.list.End(e.ID) } // its time may be up
}

// Record implements session.Spinups. It is on disk a moment later.
func (s *spinups) Record(r spinup.Record) {
	r.Collected = s.besideDeletion(r)
	s.observe(r)
	select {
	case s.queue <- r:
	default:
		s.lose(r, errors.New("too many wait for the disk"))
	}
}

// besideDeletion reports whether garbage was deleted in a spin-up's window.
func (s *spinups) besideDeletion(r spinup.Record) bool {
	return s.collected != nil && s.collected(r, len(s.cfg.Slow.Slow(r)) > 0)
}

// observe counts a spin-up and says in the log how it went.
func (s *spinups) observe(r spinup.Record) {
	s.metrics.Observe(r)
	slow := s.cfg.Slow.Slow(r)
	level, words := slog.LevelDebug, "spin-up"
	switch {
	case len(slow) > 0:
		level, words = slog.LevelWarn, "slow spin-up"
	case r.Kind == spinup.ForSession:
		level = slog.LevelInfo
	}
	attrs := []any{"id", r.ID, "kind", r.Kind, "image", r.Image, "outcome", r.Outcome, "took", r.Took, "phases", strings.Join(r.Lines(), "; ")}
	if r.Job != "" {
		attrs = append(attrs, "job", r.Job)
	}
	if len(slow) > 0 {
		attrs = append(attrs, "slow", slow)
	}
	if s.suspect != nil && slices.ContainsFunc(slow, func(p spinup.Phase) bool { return p != spinup.Download }) {
		s.suspect()
	}
	if r.Error != "" {
		attrs = append(attrs, "failed_in", r.Failed, "cause", r.Cause, "error", r.Error)
	}
	s.log.Log(context.Background(), level, words, attrs...)
}

func (s *spinups) lose(r spinup.Record, err error) {
	s.lost.Inc()
	s.log.Warn("a spin-up is not recorded", "id", r.ID, "image", r.Image, "err", err)
}

// open opens the store, if it can be.
func (s *spinups) open() {
	store, err := spinup.OpenStore(s.path, s.cfg.Keep, s.log)
	if err != nil {
		s.log.Warn("the records of spin-ups cannot be opened (will be tried again)", "err", err)
		return
	}
	s.mu.Lock()
	s.store = store
	s.mu.Unlock()
}

func (s *spinups) opened() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.store != nil
}

// errNotOpen is nothing to give up for: it is tried again, or, where this agent
// is ending, its store is free in a moment.
var errNotOpen = fmt.Errorf("the records of spin-ups are not open: %w", holdfast.ErrBusy)

// with calls do with the store. holdfast.ErrBusy while it is not open.
func (s *spinups) with(do func(*spinup.Store) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.store == nil {
		return holdfast.WithHint(errNotOpen, "the agent's log says why")
	}
	return do(s.store)
}

// Run writes records until ctx is done, and closes the store. What ends later is
// not kept.
func (s *spinups) Run(ctx context.Context) error {
	var expiring sync.WaitGroup
	expiring.Go(func() { _ = s.list.Run(ctx) }) // it returns nil
	defer expiring.Wait()
	again := time.NewTicker(openAgain)
	defer again.Stop()
	for {
		queue := s.queue
		if !s.opened() {
			queue = nil // they wait for the store
		}
		select {
		case r := <-queue:
			s.write(r)
		case <-s.stale:
			s.refresh(ctx)
		case <-again.C:
			if !s.opened() {
				s.open()
			}
		case <-ctx.Done():
			for len(s.queue) > 0 {
				s.write(<-s.queue)
			}
			return s.close()
		}
	}
}

// write keeps a record and those that wait behind it: at once, so that they
// share a sync.
func (s *spinups) write(r spinup.Record) {
	batch := []spinup.Record{r}
	for len(batch) < recordBatch && len(s.queue) > 0 {
		batch = append(batch, <-s.queue) // nobody else takes from it
	}
	var writing sync.WaitGroup
	for _, r := range batch {
		writing.Go(func() {
			if err := s.with(func(store *spinup.Store) error { return store.Append(r) }); err != nil {
				s.lose(r, err)
			}
		})
	}
	writing.Wait()
}

// refresh asks the engine what it is now.
func (s *spinups) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := s.engine.Info(ctx)
	if err != nil {
		s.log.Debug("asking the engine what it is (will be tried when it answers again)", "err", err)
		return
	}
	was := s.Cohort()
	s.setEngine(info)
	if now := s.Cohort(); now != was {
		s.log.Info("the engine is another than before", "was", was.Engine, "storage_was", was.Driver, "is", now.Engine, "storage", now.Driver)
	}
}

// connected says that the engine answers again; it may be another one.
func (s *spinups) connected() {
	select {
	case s.stale <- struct{}{}:
	default: // it is asked about already
	}
}

func (s *spinups) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return nil
	}
	store := s.store
	s.store = nil
	if err := store.Close(); err != nil {
		return fmt.Errorf("close the spin-up records: %w", err)
	}
	return nil
}

// watcher records what others do on the engine.
func (s *spinups) watcher() *others.Watcher {
	return others.New(s.engine, others.Config{
		Own:    []string{session.LabelSession, session.LabelWarm, netpool.Label, spinup.LabelJob},
		Cohort: s.Cohort, Begin: s.Begin, Record: s.Record, Connected: s.connected, Log: s.log,
		DataRoot: func() string { return *s.root.Load() },
		Busy:     s.busy,
	})
}

// busy reports whether spin-ups of Holdfast's own are under way.
func (s *spinups) busy() bool {
	counts := s.list.Counts()
	return counts[string(spinup.ForSession)]+counts[string(spinup.ForPull)]+counts[string(spinup.ForRun)] > 0
}
