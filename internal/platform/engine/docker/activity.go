package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"holdfast/internal/platform/engine"
)

// eventsKept is how many events an engine keeps to replay (moby,
// daemon/events/events.go eventsLimit).
const eventsKept = 256

// Activity yields what used images, networks and volumes, from since on as far as the engine
// remembers, until ctx is done; then the sequence ends. A Gap comes first where
// the engine may not remember all that was since then, and again after each
// break in the connection. Read without waiting, as with Events. With until it
// ends there, and at the first break with a Gap.
func (e *Engine) Activity(ctx context.Context, since, until time.Time) iter.Seq[engine.Activity] {
	filters := client.Filters{}.Add("type", string(events.ContainerEventType), string(events.ImageEventType),
		string(events.NetworkEventType), string(events.VolumeEventType))
	return func(yield func(engine.Activity) bool) {
		retry := firstRetry
		for ctx.Err() == nil {
			last, subscribed, end := e.replay(ctx, filters, since, until, yield)
			if end == broken && !until.IsZero() && ctx.Err() == nil {
				yield(engine.Activity{Gap: true, Since: last, Time: time.Now()})
			}
			if end == enough || !until.IsZero() {
				return
			}
			if subscribed {
				retry = firstRetry
			}
			since = last
			sleep(ctx, retry)
			retry = min(2*retry, lastRetry)
		}
	}
}

// ending is how a connection's events ended.
type ending int

const (
	broken ending = iota
	whole         // the engine had told all until then
	enough        // the reader wants no more
)

// replay yields one connection's events and returns the time up to which all is
// known.
func (e *Engine) replay(ctx context.Context, filters client.Filters, since, until time.Time, yield func(engine.Activity) bool) (last time.Time, subscribed bool, end ending) {
	from := since
	if from.IsZero() {
		from = time.Now()
	}
	if !until.IsZero() && from.After(until) {
		from = until // the engine refuses it otherwise
	}
	asking := ctx
	ctx, cancel := context.WithCancel(ctx)
	var answered atomic.Bool
	ctx = context.WithValue(ctx, answeredKey{}, &answered)
	o := client.EventsListOptions{Since: stampOf(from), Filters: filters}
	if !until.IsZero() {
		o.Until = stampOf(until)
	}
	stream := e.api.Events(ctx, o)
	defer func() {
		cancel()
		for range stream.Err { // closed when the stream's goroutine ends
		}
	}()
	if !answered.Load() {
		return since, false, broken
	}
	if now := time.Now(); !e.remembers(asking, since) && !yield(engine.Activity{Gap: true, Since: since, Time: now}) {
		return since, true, enough
	}
	last = from
	for {
		select {
		case m := <-stream.Messages:
			last = time.Unix(0, m.TimeNano)
			if a, ok := activityOf(m); ok && !yield(a) {
				return last, true, enough
			}
		case err := <-stream.Err:
			if errors.Is(err, io.EOF) {
				return last, true, whole
			}
			return last, true, broken
		}
	}
}

// remembers reports whether the engine can replay everything since then: it
// keeps its last events only, and none over a restart. That it does is seen by
// an event that is older, or, where there are few, by fewer than it could keep
// while it was the same engine, which nobody can tell: so only the former
// counts.
func (e *Engine) remembers(ctx context.Context, since time.Time) bool {
	if since.IsZero() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stream := e.api.Events(ctx, client.EventsListOptions{Since: "1", Until: stampOf(time.Now())})
	defer func() {
		cancel()
		for range stream.Err {
		}
	}()
	for range eventsKept {
		select {
		case m := <-stream.Messages:
			return !time.Unix(0, m.TimeNano).After(since)
		case <-stream.Err:
			return false
		}
	}
	return false
}

func stampOf(t time.Time) string { return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()) }

// activityOf is the use that an event tells of. Of a container it is everything
// but its exec calls and health checks, of which there are many; of a network and
// a volume that a container gets it, and lets it go.
func activityOf(m events.Message) (engine.Activity, bool) {
	a := engine.Activity{Time: time.Unix(0, m.TimeNano), Action: string(m.Action)}
	switch m.Type {
	case events.ContainerEventType:
		a.Image = m.Actor.Attributes["image"]
		return a, a.Image != "" && !strings.HasPrefix(a.Action, "exec_") && !strings.HasPrefix(a.Action, "health_status")
	case events.ImageEventType:
		a.Image = m.Actor.ID
		return a, a.Image != "" && a.Action != "delete" && a.Action != "untag" && a.Action != "prune"
	case events.NetworkEventType:
		a.Network = m.Actor.ID
		return a, a.Network != "" && (a.Action == "connect" || a.Action == "disconnect")
	case events.VolumeEventType:
		a.Volume = m.Actor.ID
		return a, a.Volume != "" && (a.Action == "mount" || a.Action == "unmount")
	}
	return a, false
}
