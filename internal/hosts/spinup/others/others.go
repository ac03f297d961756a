// Package others records the spin-ups of other clients of the same engine, for example
// `docker run`, compose or a kubelet. It follows the engine's events, and inspects each
// container once. The phases are:
//
//   - create: from the container's Created to the create event. The engine sets Created
//     when the call arrives, before it makes the container's layer. It sends the event
//     when the container is complete (moby, daemon/container.go newContainer and
//     daemon/create.go).
//   - start: from the container's connection to its network, early in a start, to the
//     start event (moby, daemon/start.go containerStart). The mount of its file system
//     comes before and is not included. The time between create and start is the
//     client's own: it is part of the total and of no phase. A container without a
//     network of its own has no time of the start.
//   - ready: from the start to the first healthy, if there is a healthcheck. A container
//     that was removed before the engine could report its healthcheck counts as up if
//     its exit code was 0.
//   - download and extract: not recorded. An engine sends one event when a pull has
//     ended, also if the image was present, and none when a pull begins or fails. The
//     record has the time of that event if it was recent. A running pull is detected by
//     the files of its layers, or by the engine's own containerd.
//
// A container that is created and not started within StartWithin is not a spin-up.
// Events while the agent does not run are lost, except those that the engine still has
// when the agent is connected again.
package others

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// Limits of waits and tables.
const (
	// StartWithin is how long after its create a container's start still
	// belongs to the same spin-up.
	StartWithin = 10 * time.Minute
	// ReadyWithin is how long a container may take to become healthy; after that
	// it has failed.
	ReadyWithin = 10 * time.Minute

	maxPending  = 1024 // containers between their create and the end of their spin-up
	maxPulled   = 256  // images with a known end of a pull
	pulledFresh = time.Minute
	askers      = 4
	askTimeout  = 10 * time.Second
	sweepEvery  = 5 * time.Second
	// tellWithin is how long the engine is queried for the reason of a failure:
	// two unanswered queries and the pause between them.
	tellWithin = 2*askTimeout + 2*sweepEvery
)

// actions are the subscribed events. They leave out the exec events of
// healthchecks, which are by far the most frequent.
var actions = [...]string{"pull", "create", "start", "kill", "die", "destroy", "health_status", "connect", "disconnect"}

// Engine is the part of a container engine that a Watcher uses.
type Engine interface {
	Watch(ctx context.Context, o engine.WatchOptions) iter.Seq[engine.Event]
	Inspect(ctx context.Context, id string) (engine.Container, error)
}

// Fetcher is an Engine that reports when any client fetches or extracts layers, and when
// none does any more.
type Fetcher interface {
	Fetching(ctx context.Context) iter.Seq[bool]
}

// Config configures a Watcher. All functions are called from one goroutine and
// must return soon.
type Config struct {
	// Own are labels of containers that other parts of Holdfast record.
	Own []string
	// Cohort returns the engine's current cohort.
	Cohort func() spinup.Cohort
	// Begin announces a spin-up in progress until end is called. end may be
	// called more than once.
	Begin func(kind spinup.Kind, name string) (end func())
	// Record takes a finished spin-up.
	Record func(spinup.Record)
	// Connected is called each time that the engine answers again, because it may
	// have been replaced.
	Connected func()
	// DataRoot returns the engine's directory on this host, or "" if there is
	// none.
	DataRoot func() string
	// Busy reports whether Holdfast's own spin-ups are in progress: then fetched
	// layers are attributed to them.
	Busy func() bool
	Log  *slog.Logger
}

// Watcher records the spin-ups of other clients.
type Watcher struct {
	engine Engine
	cfg    Config
}

// New returns an idle Watcher.
func New(e Engine, c Config) *Watcher { return &Watcher{e, c} }

// answer is the engine's answer about a container.
type answer struct {
	id        string
	container engine.Container
	err       error
}

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	events := make(chan *engine.Event, 1024)
	asks := make(chan string, maxPending)
	answers := make(chan *answer, maxPending)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() {
		for ev := range w.engine.Watch(ctx, engine.WatchOptions{Actions: actions[:]}) {
			select {
			case events <- &ev:
			case <-ctx.Done():
				return
			}
		}
	})
	for range askers {
		running.Go(func() { w.ask(ctx, asks, answers) })
	}
	t := newTracker(w.cfg, func(id string) bool {
		select {
		case asks <- id:
			return true
		default:
			return false
		}
	})
	defer t.dropAll()
	reported := make(chan bool)
	if f, ok := w.engine.(Fetcher); ok {
		running.Go(func() {
			for now := range f.Fetching(ctx) {
				select {
				case reported <- now:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	pulls := fetching{cfg: w.cfg}
	defer pulls.stop()
	sweep := tasks.Tick(sweepEvery)
	for {
		select {
		case ev := <-events:
			t.add(*ev)
		case a := <-answers:
			t.answered(*a)
		case pulls.reported = <-reported:
			pulls.look(time.Now())
		case now := <-tasks.Tick(lookEvery):
			pulls.look(now)
		case <-sweep:
			t.sweep(time.Now())
			sweep = tasks.Tick(sweepEvery)
		case <-ctx.Done():
			return nil
		}
	}
}

// ask inspects containers until ctx is done.
func (w *Watcher) ask(ctx context.Context, asks <-chan string, answers chan<- *answer) {
	for {
		select {
		case id := <-asks:
			a := &answer{id: id}
			asking, cancel := context.WithTimeout(ctx, askTimeout)
			a.container, a.err = w.engine.Inspect(asking, id)
			cancel()
			select {
			case answers <- a:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
