package others

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// pending is a container between its create and the end of its spin-up. Times
// are the engine's.
type pending struct {
	id, name, image string
	created         time.Time // the create event
	asked           time.Time // the create call; zero if the engine was not yet queried, or does not report it
	connected       time.Time // the last connection to its network
	started         time.Time // the start event
	heard           time.Time // when the last of these arrived, by this host's clock
	open            int       // unanswered queries to the engine
	known           bool      // the engine has reported whether it has a healthcheck
	checked         bool      // it has a healthcheck
	killed          bool      // a client killed it
	gap             bool      // its events may be incomplete
	failed          *failure  // to be recorded when the engine has given the reason
	end             func()    // ends the announcement
}

// failure is the failure of a spin-up.
type failure struct {
	at    time.Time
	phase spinup.Phase
	text  string
	code  int // the exit code, if it exited
}

// wasUp reports whether a container that has failed after its start was up
// before. Without a healthcheck it was up at its start. If it exited before the
// engine could report whether it has one, its exit code decides.
func (p *pending) wasUp() bool {
	return p.failed.phase == spinup.Ready && !p.checked && (p.known || p.failed.code == 0)
}

// tracker converts events to records. One goroutine uses it.
type tracker struct {
	cfg     Config
	ask     func(id string) bool // queries the engine about a container; false: too many queries are open
	pending map[string]*pending  // by container
	pulled  map[string]time.Time // end of the last pull, by image
	begun   bool                 // the first Gap was received
}

func newTracker(c Config, ask func(string) bool) *tracker {
	return &tracker{cfg: c, ask: ask, pending: map[string]*pending{}, pulled: map[string]time.Time{}}
}

// add takes the next event.
func (t *tracker) add(ev engine.Event) {
	switch {
	case ev.Gap:
		t.reconnected()
	case ev.Type == engine.OfImage && ev.Action == "pull":
		t.addPull(ev)
	case ev.Type == engine.OfNetwork:
		t.addNetwork(ev)
	case ev.Type == engine.OfContainer && ev.Action == "create":
		t.addCreate(ev)
	case ev.Type == engine.OfContainer:
		if p := t.pending[ev.ID]; p != nil && p.failed == nil {
			t.addContainer(p, ev)
		}
	}
}

// reconnected queries all pending containers, because events may be lost.
func (t *tracker) reconnected() {
	t.cfg.Connected()
	if t.begun {
		for _, p := range t.pending {
			p.gap = true
			t.question(p)
		}
	}
	t.begun = true
}

func (t *tracker) addPull(ev engine.Event) {
	if len(t.pulled) >= maxPulled {
		images := slices.Collect(maps.Keys(t.pulled))
		delete(t.pulled, slices.MinFunc(images, func(a, b string) int { return t.pulled[a].Compare(t.pulled[b]) }))
	}
	t.pulled[normal(ev.ID)] = ev.Time
}

func (t *tracker) addCreate(ev engine.Event) {
	for _, label := range t.cfg.Own {
		if _, own := ev.Labels[label]; own {
			return
		}
	}
	if t.pending[ev.ID] != nil {
		return // reported twice
	}
	if len(t.pending) >= maxPending {
		t.dropOldest()
	}
	p := &pending{
		id: ev.ID, name: ev.Name, image: ev.Image, created: ev.Time, heard: time.Now(),
		end: t.cfg.Begin(spinup.ForOther, ev.Name),
	}
	t.pending[ev.ID] = p
	t.question(p)
}

// dropOldest drops the oldest container without a record.
func (t *tracker) dropOldest() {
	all := slices.Collect(maps.Values(t.pending))
	p := slices.MinFunc(all, func(a, b *pending) int { return a.created.Compare(b.created) })
	t.cfg.Log.Warn("too many containers are being made by others: one is not recorded", "container", p.name, "most", maxPending)
	t.drop(p)
}

// drop forgets a container.
func (t *tracker) drop(p *pending) {
	p.end()
	delete(t.pending, p.id)
}

func (t *tracker) dropAll() {
	for _, p := range t.pending {
		t.drop(p)
	}
}

// question queries the engine about a container.
func (t *tracker) question(p *pending) {
	if t.ask(p.id) {
		p.open++
	}
}

func (t *tracker) addNetwork(ev engine.Event) {
	p := t.pending[ev.Container]
	if p == nil || !p.started.IsZero() || p.failed != nil {
		return
	}
	if ev.Action == "connect" {
		p.connected = ev.Time
		return
	}
	if !p.connected.IsZero() { // its start was abandoned
		t.fail(p, failure{at: ev.Time, phase: spinup.Start, text: "it did not start"})
	}
}

func (t *tracker) addContainer(p *pending, ev engine.Event) {
	switch ev.Action {
	case "start":
		p.started, p.heard = ev.Time, time.Now()
		p.end()
		t.settle(p)
	case "kill":
		p.killed = true
	case "health_status: healthy":
		p.known, p.checked = true, true
		if !p.started.IsZero() {
			t.record(p, ev.Time, nil)
		}
	case "health_status: unhealthy":
		p.known, p.checked = true, true
		t.fail(p, failure{at: ev.Time, phase: spinup.Ready, text: "its healthcheck says that it is unhealthy"})
	case "die":
		t.fail(p, died(p, ev))
	case "destroy":
		if p.started.IsZero() {
			t.record(p, ev.Time, &failure{at: ev.Time, text: "it was removed before it was started"})
		}
		// If it has started, the die event came before.
	}
}

func died(p *pending, ev engine.Event) failure {
	f := failure{at: ev.Time, phase: spinup.Ready, code: ev.ExitCode,
		text: fmt.Sprintf("it ended with exit code %d before it was healthy", ev.ExitCode)}
	switch {
	case p.started.IsZero():
		f.phase, f.text = spinup.Start, fmt.Sprintf("it did not start: exit code %d", ev.ExitCode)
	case !p.known:
		f.text = fmt.Sprintf("it ended with exit code %d before it was known whether it was healthy", ev.ExitCode)
	}
	return f
}

// fail records a failure once the engine has been queried for the reason.
func (t *tracker) fail(p *pending, f failure) {
	p.failed, p.heard = &f, time.Now()
	if !p.started.IsZero() && p.open > 0 {
		// It is not known yet whether there is a healthcheck; without one the
		// container was up.
		return
	}
	t.question(p)
	if p.open == 0 {
		t.finish(p)
	}
}

// finish records a failure for which no more information is expected.
func (t *tracker) finish(p *pending) {
	if p.wasUp() {
		t.record(p, p.started, nil)
		return
	}
	t.record(p, p.failed.at, p.failed)
}

// answered takes the engine's answer about a container. sweep repeats an
// unanswered query.
func (t *tracker) answered(a answer) {
	p := t.pending[a.id]
	if p == nil {
		return
	}
	p.open--
	if a.err == nil {
		t.learn(p, a.container)
	}
	if p.open > 0 {
		return
	}
	gone := errors.Is(a.err, holdfast.ErrNotFound)
	switch {
	case p.failed != nil && (p.known || gone):
		t.finish(p)
	case p.failed != nil: // queried again
	case gone && p.started.IsZero():
		t.drop(p) // the outcome is unknown
	case gone && p.gap:
		t.record(p, p.started, nil) // it was up; its end may be among the lost events
	default: // if it is gone, its end event follows
		t.settle(p)
	}
}

// learn takes the engine's data about a container.
func (t *tracker) learn(p *pending, c engine.Container) {
	p.known, p.checked = true, c.Healthcheck
	if !c.Created.IsZero() && c.Created.Before(p.created) {
		p.asked = c.Created
	}
	if p.gap && p.started.IsZero() && c.StartedAt.After(p.created) {
		p.started, p.heard = c.StartedAt, time.Now()
		p.connected = time.Time{} // it may be from an earlier try
		p.end()
	}
	if p.failed != nil && c.Error != "" {
		p.failed.text = c.Error
	}
}

// settle records a container that is up, once no further event is expected.
func (t *tracker) settle(p *pending) {
	if !p.started.IsZero() && p.open == 0 && p.known && !p.checked {
		t.record(p, p.started, nil)
	}
}

// sweep ends containers without further events, and repeats unanswered queries.
func (t *tracker) sweep(now time.Time) {
	for _, p := range t.pending {
		waited := now.Sub(p.heard)
		switch {
		case p.failed != nil && waited > tellWithin:
			t.finish(p)
		case p.started.IsZero() && waited > StartWithin:
			t.drop(p)
		case !p.started.IsZero() && waited > ReadyWithin && !p.checked:
			t.record(p, p.started, nil) // the engine never reported a healthcheck
		case !p.started.IsZero() && waited > ReadyWithin:
			t.record(p, p.started.Add(ReadyWithin), &failure{phase: spinup.Ready, text: fmt.Sprintf("it was not healthy after %v", ReadyWithin)})
		case !p.known && p.open == 0:
			t.question(p)
		}
	}
}

// record ends a spin-up; why is nil if it succeeded.
func (t *tracker) record(p *pending, ended time.Time, why *failure) {
	begun := p.asked
	if begun.IsZero() {
		begun = p.created
	}
	r := spinup.NewRecord(spinup.ForOther, p.image, begun, t.cfg.Cohort())
	r.Container, r.Name, r.Outcome = p.id, p.name, spinup.OK
	r.Took = millis(begun, ended)
	if !p.asked.IsZero() {
		r.Times[spinup.Create] = millis(p.asked, p.created)
	}
	if !p.connected.IsZero() && !p.started.IsZero() {
		r.Times[spinup.Start] = millis(p.connected, p.started)
	}
	if why == nil && p.checked {
		r.Times[spinup.Ready] = millis(p.started, ended)
	}
	if at, ok := t.pulled[normal(p.image)]; ok && !at.After(begun) && begun.Sub(at) < pulledFresh {
		r.Pulled = at.UTC()
	}
	if why != nil {
		r.Outcome, r.Failed, r.Error, r.Cause = spinup.Failed, why.phase, why.text, spinup.Other
		if p.killed || why.phase == "" {
			r.Outcome, r.Cause = spinup.Stopped, spinup.Canceled
		}
	}
	t.drop(p)
	t.cfg.Record(r)
}

func millis(from, to time.Time) holdfast.Millis { return holdfast.Millis(max(to.Sub(from), 0)) }

// normal returns an image's name in the form of an engine's pull event, with its tag.
func normal(image string) string {
	if strings.HasPrefix(image, "sha256:") {
		return image // an image's id, not a name
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return reference.FamiliarString(reference.TagNameOnly(named))
}
