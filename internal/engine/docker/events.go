package docker

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"holdfast/internal/engine"
)

// How long to wait before subscribing again after a break: the first wait, and
// the longest.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// notLabels are the attributes that the engine adds to a container's labels in
// an event (moby, daemon/events.go).
var notLabels = [...]string{"image", "name", "exitCode", "signal", "execID", "execDuration"}

// Events yields what happens to containers that carry all the labels until ctx
// is done. The engine drops events for a reader that stays more than about a
// thousand behind (moby, daemon/events/events.go): read without waiting.
func (e *Engine) Events(ctx context.Context, labels map[string]string) iter.Seq[engine.Event] {
	return e.follow(ctx, labelFilters(labels).Add("type", string(events.ContainerEventType)))
}

// ImageEvents is Events for images: pull, tag, untag, delete and others, with the
// image's id or name as ID.
func (e *Engine) ImageEvents(ctx context.Context) iter.Seq[engine.Event] {
	return e.follow(ctx, make(client.Filters).Add("type", string(events.ImageEventType)))
}

// follow yields events until ctx is done.
func (e *Engine) follow(ctx context.Context, filters client.Filters) iter.Seq[engine.Event] {
	return func(yield func(engine.Event) bool) {
		retry := firstRetry
		for ctx.Err() == nil {
			subscribed, more := e.subscribe(ctx, filters, yield)
			if !more {
				return
			}
			if subscribed {
				retry = firstRetry
			}
			sleep(ctx, retry)
			retry = min(2*retry, lastRetry)
		}
	}
}

// answeredKey is the context key of an *atomic.Bool that noteAnswer sets: the
// client tells neither when a subscription stands nor, in time, that it failed.
type answeredKey struct{}

// noteAnswer is the client's response hook. It runs before the client's Events
// returns.
func noteAnswer(res *http.Response) {
	if answered, ok := res.Request.Context().Value(answeredKey{}).(*atomic.Bool); ok {
		answered.Store(res.StatusCode == http.StatusOK && strings.HasSuffix(res.Request.URL.Path, "/events"))
	}
}

// subscribe yields a Gap and then events until the connection breaks. It
// reports whether there was a connection, and whether the reader wants more.
func (e *Engine) subscribe(ctx context.Context, filters client.Filters, yield func(engine.Event) bool) (subscribed, more bool) {
	ctx, cancel := context.WithCancel(ctx)
	var answered atomic.Bool
	ctx = context.WithValue(ctx, answeredKey{}, &answered)
	// The engine answers a moment before it listens; "since" makes it
	// replay what fell in between.
	since := time.Now()
	stream := e.api.Events(ctx, client.EventsListOptions{
		Since:   fmt.Sprintf("%d.%09d", since.Unix(), since.Nanosecond()),
		Filters: filters,
	})
	defer func() {
		cancel()
		for range stream.Err { // closed when the stream's goroutine ends
		}
	}()
	if !answered.Load() {
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
		ID:     m.Actor.ID,
		Action: string(m.Action),
		Labels: make(map[string]string, len(m.Actor.Attributes)),
		Time:   time.Unix(0, m.TimeNano),
	}
	if m.Action == events.ActionDie {
		// An engine that sends no number leaves 0.
		ev.ExitCode, _ = strconv.Atoi(m.Actor.Attributes["exitCode"])
	}
	for key, value := range m.Actor.Attributes {
		ev.Labels[key] = value
	}
	for _, key := range notLabels {
		delete(ev.Labels, key)
	}
	return ev
}
