package containerd

import (
	"context"
	"iter"
	"slices"
	"sort"
	"strconv"
	"sync/atomic"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"holdfast/internal/platform/engine"
)

// markTopic is the topic of the marks by which a subscriber learns that its
// subscription has begun.
const markTopic = "/holdfast/subscribed"

// marks numbers the marks of this process's subscribers.
type marks struct{ last atomic.Uint64 }

func (m *marks) next() string {
	return strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.FormatUint(m.last.Add(1), 36)
}

// subscriptionLimit bounds a subscriber's wait for its own mark.
const subscriptionLimit = 10 * time.Second

// Watch yields the events of the engine's namespace until ctx is done. containerd
// keeps no events. Of past events Watch yields those that follow from the present
// containers: create, connect and start.
func (e *Engine) Watch(ctx context.Context, o engine.WatchOptions) iter.Seq[engine.Event] {
	return func(yield func(engine.Event) bool) {
		since := o.Since
		if since.IsZero() {
			since = time.Now()
		}
		told := func(ev engine.Event) bool {
			if !ev.Gap {
				if ev.Time.After(since) {
					since = ev.Time
				}
				if len(o.Actions) > 0 && !slices.Contains(o.Actions, ev.Action) {
					return true
				}
			}
			return yield(ev)
		}
		e.follow(ctx, told, func(seen *knownContainers) bool {
			from := since
			for _, ev := range seen.past(ctx, e, from) {
				if !told(ev) {
					return false
				}
			}
			return true
		})
	}
}

// follow subscribes, again after each break. afterGap, if not nil, is called after
// each Gap and reports whether the reader goes on.
func (e *Engine) follow(ctx context.Context, yield func(engine.Event) bool, afterGap func(*knownContainers) bool) {
	engine.Resubscribe(ctx, func() (subscribed, more bool) { return e.subscribe(ctx, yield, afterGap) })
}

// subscribe yields a Gap and then events until the connection breaks. It reports
// whether there was a connection, and whether the reader goes on.
func (e *Engine) subscribe(ctx context.Context, yield func(engine.Event) bool, afterGap func(*knownContainers) bool) (subscribed, more bool) {
	ctx, cancel := context.WithCancel(e.in(ctx))
	stream, errs := e.api.EventService().Subscribe(ctx, "namespace=="+e.cfg.Namespace)
	defer func() {
		cancel()
		for range errs { // closed when the stream's goroutine ends
		}
	}()
	seen := &knownContainers{known: map[string]containers.Container{}}
	early, ok := e.untilMark(ctx, stream, errs)
	if !ok || !seen.look(ctx, e) {
		return false, true
	}
	if !yield(engine.Event{Gap: true, Time: time.Now()}) {
		return true, false
	}
	if afterGap != nil && !afterGap(seen) {
		return true, false
	}
	pass := func(env *events.Envelope) bool {
		for _, ev := range e.translate(ctx, seen, env) {
			if !yield(ev) {
				return false
			}
		}
		return true
	}
	for _, env := range early {
		if !pass(env) {
			return true, false
		}
	}
	for {
		select {
		case env := <-stream:
			if !pass(env) {
				return true, false
			}
		case <-errs:
			return true, true
		}
	}
}

// untilMark returns when the subscription has begun. The daemon does not report that,
// so untilMark publishes an event and waits for it. It returns the events before the
// mark.
func (e *Engine) untilMark(ctx context.Context, stream <-chan *events.Envelope, errs <-chan error) (early []*events.Envelope, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, subscriptionLimit)
	defer cancel()
	mark := e.marks.next()
	again := time.NewTimer(0)
	defer again.Stop()
	for wait := time.Millisecond; ; {
		select {
		case <-again.C:
			// A mark that is published before the subscription has begun is lost.
			if err := e.api.EventService().Publish(ctx, markTopic, wrapperspb.String(mark)); err != nil {
				return nil, false
			}
			again.Reset(wait)
			wait *= 2
		case env := <-stream:
			if env.Topic != markTopic {
				early = append(early, env)
				continue
			}
			if v, err := typeurl.UnmarshalAny(env.Event); err == nil {
				if text, good := v.(*wrapperspb.StringValue); good && text.Value == mark {
					return early, true
				}
			}
		case <-errs:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}

// knownContainers is the set of containers that a subscriber knows: events have only their ids.
type knownContainers struct {
	known map[string]containers.Container
}

func (s *knownContainers) look(ctx context.Context, e *Engine) bool {
	list, err := e.api.ContainerService().List(ctx)
	if err != nil {
		return false
	}
	for _, c := range list {
		s.known[c.ID] = c
	}
	return true
}

// of returns a container with the fields that are available.
func (s *knownContainers) of(ctx context.Context, e *Engine, id string) (containers.Container, bool) {
	c, ok := s.known[id]
	if ok {
		return c, true
	}
	c, err := e.api.ContainerService().Get(ctx, id)
	if err != nil {
		return c, false
	}
	s.known[id] = c
	return c, true
}

// past returns the events since then that follow from the present containers.
func (s *knownContainers) past(ctx context.Context, e *Engine, since time.Time) []engine.Event {
	var all []engine.Event
	for _, c := range s.known {
		if c.CreatedAt.After(since) {
			all = append(all, eventOf(c, "create", c.CreatedAt))
		}
		r := recordOf(c)
		if st, err := readState(r.Dir); err == nil && st.Started.After(since) {
			if r.Network == "" {
				all = append(all, connectOf(c, "connect", st.Started, e.cfg.Bridge))
			}
			all = append(all, eventOf(c, "start", st.Started))
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Time.Before(all[j].Time) })
	return all
}

func eventOf(c containers.Container, action string, at time.Time) engine.Event {
	return engine.Event{
		Type: engine.OfContainer, ID: c.ID, Action: action, Labels: labelsOf(c), Name: nameOf(c), Image: recordOf(c).Image, Time: at,
	}
}

// connectOf is the connect or disconnect event of a container and the bridge.
func connectOf(c containers.Container, action string, at time.Time, bridge string) engine.Event {
	return engine.Event{Type: engine.OfNetwork, ID: bridge, Name: bridge, Action: action, Container: c.ID, Time: at}
}

// translate turns an event of containerd into one of package engine.
func (e *Engine) translate(ctx context.Context, s *knownContainers, env *events.Envelope) []engine.Event {
	v, err := typeurl.UnmarshalAny(env.Event)
	if err != nil {
		return nil // an unknown kind
	}
	of := func(id, action string) []engine.Event {
		c, ok := s.of(ctx, e, id)
		if !ok {
			return nil // it is gone already: it was never started
		}
		return []engine.Event{eventOf(c, action, env.Timestamp)}
	}
	network := func(id, action string) []engine.Event {
		c, ok := s.of(ctx, e, id)
		if !ok || recordOf(c).Network != "" {
			return nil
		}
		return []engine.Event{connectOf(c, action, env.Timestamp, e.cfg.Bridge)}
	}
	switch ev := v.(type) {
	case *apievents.ContainerCreate:
		return of(ev.ID, "create")
	case *apievents.ContainerUpdate:
		delete(s.known, ev.ID) // its labels may have changed
		return of(ev.ID, "update")
	case *apievents.ContainerDelete:
		out := of(ev.ID, "destroy")
		delete(s.known, ev.ID)
		return out
	case *apievents.TaskStart:
		return slices.Concat(network(ev.ContainerID, "connect"), of(ev.ContainerID, "start"))
	case *apievents.TaskExit:
		if ev.ID != ev.ContainerID {
			return of(ev.ContainerID, "exec_die")
		}
		out := of(ev.ContainerID, "die")
		for i := range out {
			out[i].ExitCode = int(ev.ExitStatus)
		}
		return slices.Concat(out, network(ev.ContainerID, "disconnect"))
	case *apievents.TaskOOM:
		return of(ev.ContainerID, "oom")
	case *apievents.TaskPaused:
		return of(ev.ContainerID, "pause")
	case *apievents.TaskResumed:
		return of(ev.ContainerID, "unpause")
	case *apievents.ImageCreate:
		return imageEvent(ev.Name, "pull", env.Timestamp)
	case *apievents.ImageUpdate:
		return imageEvent(ev.Name, "tag", env.Timestamp)
	case *apievents.ImageDelete:
		return imageEvent(ev.Name, "delete", env.Timestamp)
	}
	return nil
}

func imageEvent(name, action string, at time.Time) []engine.Event {
	return []engine.Event{{Type: engine.OfImage, ID: name, Name: name, Action: action, Time: at}}
}
