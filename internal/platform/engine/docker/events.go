package docker

import (
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"holdfast/internal/platform/engine"
)

// notLabels are the attributes that the engine adds to a container's labels in
// an event (moby, daemon/events.go).
var notLabels = [...]string{"image", "name", "exitCode", "signal", "execID", "execDuration"}

// Watch yields the events of the whole engine until ctx is done.
func (e *Engine) Watch(ctx context.Context, o engine.WatchOptions) iter.Seq[engine.Event] {
	filters := client.Filters{}
	for _, action := range o.Actions {
		filters.Add("event", action)
	}
	return func(yield func(engine.Event) bool) {
		since := o.Since
		if since.IsZero() {
			since = time.Now()
		}
		told := func(ev engine.Event) bool {
			if !ev.Gap {
				since = ev.Time.Add(1) // "since" is inclusive
			}
			return yield(ev)
		}
		engine.Resubscribe(ctx, func() (subscribed, more bool) { return e.subscribe(ctx, filters, since, told) })
	}
}

// Stopped reports whether the engine's last 256 events have a signal to the container. An
// engine that ends sends one before it stops the container (moby, daemon/daemon.go
// shutdownContainer).
func (e *Engine) Stopped(ctx context.Context, id string) (bool, error) {
	stream, answered, unsubscribe := e.open(ctx, client.EventsListOptions{
		Since: "0", Until: stampOf(time.Now()),
		Filters: client.Filters{}.Add("container", id).Add("event", string(events.ActionKill)),
	})
	defer unsubscribe()
	select {
	case <-stream.Messages:
		return true, nil
	case err := <-stream.Err: // io.EOF at the end of the past
		if answered && errors.Is(err, io.EOF) {
			return false, nil
		}
		return false, e.fail(ctx, err, "read the events of container %s", id)
	}
}

// answeredKey is the context key of an *atomic.Bool that noteAnswer sets. The client
// does not report when a subscription begins, and reports its failure late.
type answeredKey struct{}

// noteAnswer is the client's response hook. It runs before the client's Events
// returns.
func (e *Engine) noteAnswer(res *http.Response) {
	e.agree(res.Header.Get("Api-Version"))
	e.podman.Store(strings.HasPrefix(res.Header.Get("Server"), "Libpod/")) // podman, pkg/api/server/handler_api.go
	if answered, ok := res.Request.Context().Value(answeredKey{}).(*atomic.Bool); ok {
		answered.Store(res.StatusCode == http.StatusOK && strings.HasSuffix(res.Request.URL.Path, "/events"))
	}
}

// open subscribes. It reports whether the engine has answered. unsubscribe ends the
// subscription.
func (e *Engine) open(ctx context.Context, o client.EventsListOptions) (stream client.EventsResult, answered bool, unsubscribe func()) {
	ctx, cancel := context.WithCancel(ctx)
	var mark atomic.Bool
	stream = e.api().Events(context.WithValue(ctx, answeredKey{}, &mark), o)
	return stream, mark.Load(), func() {
		cancel()
		for range stream.Err { // closed when the stream's goroutine ends
		}
	}
}

// subscribe yields a Gap and then events until the connection breaks. It reports
// whether there was a connection, and whether the reader goes on.
//
// The engine answers a moment before the subscription begins; since makes it replay
// the events in between.
func (e *Engine) subscribe(ctx context.Context, filters client.Filters, since time.Time, yield func(engine.Event) bool) (subscribed, more bool) {
	stream, answered, unsubscribe := e.open(ctx, client.EventsListOptions{Since: stampOf(since), Filters: filters})
	defer unsubscribe()
	if !answered {
		return false, true
	}
	if !yield(engine.Event{Gap: true, Time: since}) {
		return true, false
	}
	for {
		select {
		case m := <-stream.Messages:
			if !yield(eventOf(m)) {
				return true, false
			}
		case <-stream.Err:
			return true, true
		}
	}
}

func eventOf(m events.Message) engine.Event {
	ev := engine.Event{
		Type:   string(m.Type),
		ID:     m.Actor.ID,
		Action: string(m.Action),
		Name:   m.Actor.Attributes["name"],
		Labels: maps.Clone(m.Actor.Attributes),
		Time:   time.Unix(0, m.TimeNano),
	}
	switch m.Type {
	case events.ContainerEventType:
		ev.Image = m.Actor.Attributes["image"]
	case events.NetworkEventType:
		ev.Container = m.Actor.Attributes["container"]
	}
	if m.Action == events.ActionDie {
		// Without a number the exit code stays 0.
		ev.ExitCode, _ = strconv.Atoi(m.Actor.Attributes["exitCode"])
	}
	for _, key := range notLabels {
		delete(ev.Labels, key)
	}
	return ev
}
