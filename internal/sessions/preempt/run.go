package preempt

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// The pause after a failure of a source. It starts at retryMin and doubles up to
// retryMax. On a host outside the configured cloud, a source tries once a minute.
const (
	retryMin = time.Second
	retryMax = time.Minute
)

// Run runs all sources until ctx is done and all of them have ended. A source
// that fails is started again after a pause between a second and a minute; its
// notices stay valid meanwhile. The log gets one warning when a source begins to
// fail and one line when it answers again.
//
// tell is called once for each event, from one goroutine at a time. Sources wait
// until it returns.
func Run(ctx context.Context, sources []Source, tell func(Notice), log *slog.Logger) {
	run(ctx, sources, tell, log, retryMin, retryMax)
}

func run(ctx context.Context, sources []Source, tell func(Notice), log *slog.Logger, least, most time.Duration) {
	b := noticeSet{valid: make(map[event]Notice), tell: tell}
	var wg sync.WaitGroup
	for _, s := range sources {
		r := runner{source: s, notices: &b, log: log.With("source", s.Name()), least: least, most: most}
		wg.Go(func() { r.run(ctx) })
	}
	wg.Wait()
	<-ctx.Done()
}

// runner keeps one source running.
type runner struct {
	source  Source
	notices *noticeSet
	log     *slog.Logger
	least   time.Duration // of a pause
	most    time.Duration

	mu      sync.Mutex // a source may call report from several goroutines
	pause   time.Duration
	failing bool
}

func (r *runner) run(ctx context.Context) {
	for {
		err := r.source.Run(ctx, r.report)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		if tasks.Sleep(ctx, r.failed(err)) != nil {
			return
		}
	}
}

// report records the valid notices of the source, which works again.
func (r *runner) report(now ...Notice) {
	r.mu.Lock()
	if r.failing {
		r.log.Info("answers again")
	}
	r.failing, r.pause = false, 0
	r.mu.Unlock()
	r.notices.set(r.source.Name(), now)
}

// failed records a failure and returns the pause before the next try.
func (r *runner) failed(err error) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.failing {
		log := r.log
		if hint := holdfast.HintOf(err); hint != "" {
			log = log.With("hint", hint)
		}
		log.Warn("no notices can be received; trying again, at least once a minute", "error", err)
	}
	r.failing = true
	r.pause = min(max(2*r.pause, r.least), r.most)
	return r.pause
}

// event identifies an event among all sources.
type event struct{ source, id string }

// noticeSet holds all valid notices and reports changes.
type noticeSet struct {
	tell func(Notice)

	mu    sync.Mutex
	valid map[event]Notice
}

// set replaces the valid notices of a source. It reports every event that is new or
// has changed its kind, and reports Withdrawn when the last notice is withdrawn.
func (b *noticeSet) set(source string, now []Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	keep := make(map[event]bool, len(now))
	for _, n := range now {
		n.Source = source
		if n.Done == nil {
			n.Done = func(context.Context) error { return nil }
		}
		e := event{source, n.ID}
		keep[e] = true
		if old, ok := b.valid[e]; !ok || old.Kind != n.Kind {
			b.valid[e] = n
			b.tell(n)
		}
	}
	for e, n := range b.valid {
		if e.source != source || keep[e] {
			continue
		}
		delete(b.valid, e)
		if len(b.valid) == 0 {
			n.Kind, n.Deadline = Withdrawn, time.Time{}
			b.tell(n)
		}
	}
}
