// Package others records the spin-ups that other people do on the same engine:
// `docker run`, compose, a kubelet, whatever. It goes by the engine's events, and
// asks the engine about each container once. What that tells, and what not:
//
//   - create: from the container's Created, which the engine notes as the call
//     comes in, before the container's layer is made, to the create event, which
//     it sends when all of it is there (moby, daemon/container.go newContainer
//     and daemon/create.go).
//   - start: from the container's connection to its network, which comes early in
//     a start, to the start event (moby, daemon/start.go containerStart). The
//     mount of its file system comes before and is missing. What lies between
//     create and start is the client's own time and no phase; it is in the total.
//     Without a network of its own there is no time of the start.
//   - ready: from the start to the first healthy, where there is a healthcheck. A
//     container that was gone before the engine could say whether there is one
//     counts as up if its exit code was 0.
//   - download and extract: nothing. An engine sends one event when a pull has
//     ended, also when there was nothing to pull, and none when it begins or
//     fails. The record says when that was, if it was just before. That one is
//     under way is seen by the files of its layers, where the image store is
//     Docker's classic one.
//
// A container that is made and not started within StartWithin is no spin-up.
// What happens while nobody watches is lost, but for what the engine remembers
// when the connection to it is back.
package others

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// Bounds of what is waited for and kept.
const (
	// StartWithin is how long after its create a container's start still
	// belongs to the same spin-up.
	StartWithin = 10 * time.Minute
	// ReadyWithin is how long a healthcheck may take to be heard of; a
	// container that is not healthy by then has failed.
	ReadyWithin = 10 * time.Minute

	maxPending  = 1024 // containers between their create and their end
	maxPulled   = 256  // images of which a pull's end is known
	pulledFresh = time.Minute
	askers      = 4
	askTimeout  = 10 * time.Second
	sweepEvery  = 5 * time.Second
	// tellWithin is how long the engine is asked why a container failed: two
	// questions that are not answered, and what lies between.
	tellWithin = 2*askTimeout + 2*sweepEvery
)

// actions are the events that are asked for. Events of healthchecks' execs, which
// are by far the most, are not among them.
var actions = [...]string{"pull", "create", "start", "kill", "die", "destroy", "health_status", "connect", "disconnect"}

// Engine is what is needed of a container engine.
type Engine interface {
	Watch(ctx context.Context, o engine.WatchOptions) iter.Seq[engine.Event]
	Inspect(ctx context.Context, id string) (engine.Container, error)
}

// Config says what to leave out, and whom to tell. All functions are called from
// one goroutine and have to return soon.
type Config struct {
	// Own are labels of containers that somebody else records.
	Own []string
	// Cohort is what the engine is now.
	Cohort func() spinup.Cohort
	// Begin says that a spin-up is under way, until end is called, which may
	// be more than once.
	Begin func(kind spinup.Kind, name string) (end func())
	// Record takes a spin-up that has ended.
	Record func(spinup.Record)
	// Connected is called each time that the engine answers again: it may be
	// another one now.
	Connected func()
	// DataRoot is the engine's directory on this host, "" where it is none.
	DataRoot func() string
	// Busy reports whether spin-ups that are not others' are under way: then
	// layers that are fetched are taken for theirs.
	Busy func() bool
	Log  *slog.Logger
}

// Watcher records others' spin-ups.
type Watcher struct {
	engine Engine
	cfg    Config
}

// New returns a Watcher that does nothing yet.
func New(e Engine, c Config) *Watcher { return &Watcher{e, c} }

// answer is what the engine says of a container.
type answer struct {
	id        string
	container engine.Container
	err       error
}

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	events := make(chan engine.Event, 1024)
	asks := make(chan string, maxPending)
	answers := make(chan answer, maxPending)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() {
		for ev := range w.engine.Watch(ctx, engine.WatchOptions{Actions: actions[:]}) {
			select {
			case events <- ev:
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
	pulls := fetching{cfg: w.cfg}
	defer pulls.stop()
	look, sweep := time.NewTicker(lookEvery), time.NewTicker(sweepEvery)
	defer look.Stop()
	defer sweep.Stop()
	for {
		select {
		case ev := <-events:
			t.add(ev)
		case a := <-answers:
			t.answered(a)
		case now := <-look.C:
			pulls.look(now)
		case <-sweep.C:
			t.sweep(time.Now())
		case <-ctx.Done():
			return nil
		}
	}
}

// ask inspects containers until ctx is done.
func (w *Watcher) ask(ctx context.Context, asks <-chan string, answers chan<- answer) {
	for {
		select {
		case id := <-asks:
			a := answer{id: id}
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
