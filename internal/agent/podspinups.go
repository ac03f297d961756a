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
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube/podwatch"
	"holdfast/internal/hosts/spinup"
)

// podFlush is how often records of pods' spin-ups are written: the file is closed in
// between, so that `holdfast spinup` can read it.
const podFlush = 10 * time.Second

// podSpinups keeps the records of a Kubernetes node's spin-ups.
type podSpinups struct {
	path    string
	cfg     spinup.Config
	metrics *spinup.Metrics
	lost    prometheus.Counter
	log     *slog.Logger

	queue chan spinup.Record

	mu     sync.Mutex
	recent []spinup.Record // of the last day, the latest first
}

func newPodSpinups(cfg config.Config, reg prometheus.Registerer, log *slog.Logger) *podSpinups {
	s := &podSpinups{
		path: filepath.Join(cfg.DataDir, spinup.FileName), cfg: cfg.Spinup, metrics: spinup.NewMetrics(reg, cfg.Spinup.Slow), log: log,
		lost: newRecordsLost(), queue: make(chan spinup.Record, recordQueue),
	}
	reg.MustRegister(s.lost)
	return s
}

// load reads the records of the last day.
func (s *podSpinups) load() {
	err := s.with(func(store *spinup.Store) error {
		list, err := store.List(spinup.Filter{Since: time.Now().Add(-spinupsSince), Limit: spinupsMost})
		s.mu.Lock()
		s.recent = list
		s.mu.Unlock()
		return err
	})
	if err != nil {
		s.log.Warn("the records of spin-ups cannot be read", "err", err)
	}
}

// with opens the store for a moment.
func (s *podSpinups) with(do func(*spinup.Store) error) error {
	store, err := spinup.OpenStore(s.path, s.cfg.Keep, s.log)
	if err != nil {
		return err
	}
	return errors.Join(do(store), store.Close())
}

// known are the containers of the last day's records.
func (s *podSpinups) known() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.recent {
		ids = append(ids, r.Container)
	}
	return ids
}

// figures are those of the last day.
func (s *podSpinups) figures(now time.Time) ranking.Spinups {
	s.mu.Lock()
	s.recent = slices.DeleteFunc(s.recent, func(r spinup.Record) bool { return now.Sub(r.Begun) > spinupsSince })
	list := slices.Clone(s.recent)
	s.mu.Unlock()
	return figures(list, s.cfg.Slow)
}

// add takes a spin-up that has ended. It does not block.
func (s *podSpinups) add(r spinup.Record) {
	r = r.Bounded()
	s.metrics.Observe(r)
	level, words, slow := slog.LevelDebug, "spin-up", s.cfg.Slow.Slow(r)
	attrs := []any{"id", r.ID, "pod", r.Job, "container", r.Name, "image", r.Image, "outcome", r.Outcome, "took", r.Took, "phases", strings.Join(r.Lines(), "; ")}
	if len(slow) > 0 {
		level, words, attrs = slog.LevelWarn, "slow spin-up", append(attrs, "slow", slow)
	}
	if r.Error != "" {
		attrs = append(attrs, "failed_in", r.Failed, "error", r.Error)
	}
	s.log.Log(context.Background(), level, words, attrs...)
	s.mu.Lock()
	s.recent = append([]spinup.Record{r}, s.recent[:min(len(s.recent), spinupsMost-1)]...)
	s.mu.Unlock()
	select {
	case s.queue <- r:
	default:
		s.lose(r, errors.New("too many wait for the disk"))
	}
}

func (s *podSpinups) lose(r spinup.Record, err error) {
	s.lost.Inc()
	s.log.Warn("a spin-up is not recorded", "id", r.ID, "image", r.Image, "err", err)
}

// Run writes records until ctx is done.
func (s *podSpinups) Run(ctx context.Context) error {
	t := time.NewTicker(podFlush)
	defer t.Stop()
	var waiting []spinup.Record
	for {
		select {
		case <-t.C:
			waiting = s.flush(waiting)
		case <-ctx.Done():
			for _, r := range s.flush(waiting) {
				s.lose(r, errors.New("the store stays in use"))
			}
			return nil
		}
	}
}

// flush writes what waits. It returns what could not be written because another process
// has the store open.
func (s *podSpinups) flush(waiting []spinup.Record) []spinup.Record {
	for len(s.queue) > 0 && len(waiting) < recordQueue {
		waiting = append(waiting, <-s.queue)
	}
	if len(waiting) == 0 {
		return nil
	}
	err := s.with(func(store *spinup.Store) error {
		for _, r := range waiting {
			if err := store.Append(r); err != nil {
				return fmt.Errorf("of %d spin-ups: %w", len(waiting), err)
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, spinup.ErrInUse):
		s.log.Debug("spin-ups wait for the disk", "count", len(waiting), "err", err)
		return waiting
	case err != nil:
		for _, r := range waiting {
			s.lose(r, err)
		}
	}
	return nil
}

// newPodWatch makes what records how pods come up.
func (x *kubeNode) newPodWatch(k Kubernetes, cluster podwatch.Cluster) *podwatch.Watcher {
	x.spinups.load()
	c := podwatch.Config{Node: x.cfg.Node, Kernel: x.kernel, Known: x.spinups.known(), Record: x.spinups.add, Log: x.opt.Log}
	if k.PodDetails {
		c.Cluster = cluster
	}
	return podwatch.New(x.runtime, c)
}
