package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"holdfast/internal/platform/engine"
)

// eventsKept is the number of events that an engine keeps for replay (moby,
// daemon/events/events.go eventsLimit).
const eventsKept = 256

// Activity yields the uses of images, networks and volumes, from since on as far as
// the engine has them, until ctx is done. If the engine may not have all of them, a
// Gap comes first, and another after each break of the connection. The reader must
// not block, as with Watch. With until the sequence ends at that time, and at the
// first break with a Gap.
func (e *Engine) Activity(ctx context.Context, since, until time.Time) iter.Seq[engine.Activity] {
	filters := client.Filters{}.Add("type", string(events.ContainerEventType), string(events.ImageEventType),
		string(events.NetworkEventType), string(events.VolumeEventType))
	return func(yield func(engine.Activity) bool) {
		engine.Resubscribe(ctx, func() (subscribed, more bool) {
			last, subscribed, end := e.replay(ctx, filters, since, until, yield)
			if end == broken && !until.IsZero() && ctx.Err() == nil {
				yield(engine.Activity{Gap: true, Since: last, Time: time.Now()})
			}
			since = last
			return subscribed, end != enough && until.IsZero()
		})
	}
}

// ending is the way in which a connection's events ended.
type ending int

const (
	broken ending = iota
	whole         // complete up to then
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
		from = until // the engine refuses a later start
	}
	o := client.EventsListOptions{Since: stampOf(from), Filters: filters}
	if !until.IsZero() {
		o.Until = stampOf(until)
	}
	stream, answered, unsubscribe := e.open(ctx, o)
	defer unsubscribe()
	if !answered {
		return since, false, broken
	}
	if now := time.Now(); !e.remembers(ctx, since) && !yield(engine.Activity{Gap: true, Since: since, Time: now}) {
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

// remembers reports whether the engine can replay all events since then. It keeps its
// last events only, and none over a restart. An older event in its memory shows that
// it can. Few events do not show it, because the engine may have been restarted.
func (e *Engine) remembers(ctx context.Context, since time.Time) bool {
	if since.IsZero() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stream, _, unsubscribe := e.open(ctx, client.EventsListOptions{Since: "1", Until: stampOf(time.Now())})
	defer unsubscribe()
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

// activityOf is the use in an event. For a container that is every event except exec
// calls and health checks, which are frequent. For a network or a volume it is the
// connection to a container and its end.
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
