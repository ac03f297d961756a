package e2b

import (
	"context"
	"errors"
	"path"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"holdfast"
	"holdfast/internal/control/e2b/envd"
)

// watching is what a caller wants to know of a directory.
type watching struct {
	top       string
	recursive bool
	entries   bool // events have the entries of their files
}

// watchRequest is a request of one of the two calls that watch.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

// prepare checks that there is a directory to watch.
func (f filesystem) prepare(ctx context.Context, s sandbox, user string, q watchRequest) (watching, error) {
	_, p, err := f.d.at(ctx, s, user, q.GetPath())
	if err != nil {
		return watching{}, err
	}
	top, err := f.d.o.Agent.Stat(ctx, s.key(), p, true)
	if err != nil {
		return watching{}, f.d.missingFile(ctx, s, p, err)
	}
	if top.Type != holdfast.Directory {
		return watching{}, invalid("path is not a directory: %s", p)
	}
	return watching{p, q.GetRecursive(), q.GetIncludeEntry()}, nil
}

// watch calls ready once changes are reported, and each for every change. It returns when
// the directory is gone, the sandbox ends, each returns an error or ctx is done.
func (d *Server) watch(ctx context.Context, s sandbox, w watching, ready func() error, each func(*envd.FilesystemEvent) error) error {
	replaced := false // a file that was written from outside gets its name now
	return d.o.Agent.WatchFiles(ctx, s.key(), w.top, w.recursive, func(e holdfast.FileEvent) error {
		name := strings.TrimPrefix(strings.TrimPrefix(e.Path, w.top), "/")
		if e.Kind == holdfast.WatchReady {
			return ready()
		}
		if strings.HasPrefix(path.Base(name), tempPrefix) {
			replaced = e.Kind == holdfast.FileRenamed
			return nil
		}
		kinds := map[holdfast.FileEventKind][]envd.EventType{
			holdfast.FileCreated: {envd.EventType_EVENT_TYPE_CREATE}, holdfast.FileWritten: {envd.EventType_EVENT_TYPE_WRITE},
			holdfast.FileRemoved: {envd.EventType_EVENT_TYPE_REMOVE}, holdfast.FileRenamed: {envd.EventType_EVENT_TYPE_RENAME},
			holdfast.FileChanged: {envd.EventType_EVENT_TYPE_CHMOD},
		}[e.Kind]
		if replaced && e.Kind == holdfast.FileCreated {
			// The agent writes a file below another name. A caller expects what a program in
			// the container would have caused.
			kinds = []envd.EventType{envd.EventType_EVENT_TYPE_CREATE, envd.EventType_EVENT_TYPE_WRITE, envd.EventType_EVENT_TYPE_CHMOD}
		}
		replaced = false
		for _, kind := range kinds {
			out := &envd.FilesystemEvent{Name: name, Type: kind}
			if w.entries && kind != envd.EventType_EVENT_TYPE_REMOVE && kind != envd.EventType_EVENT_TYPE_RENAME {
				out.Entry, _ = d.stat(ctx, s, e.Path) // it may be gone
			}
			if err := each(out); err != nil {
				return err
			}
		}
		return nil
	})
}

// tempPrefix begins the names of files that the agent has not completed (package
// filetree).
const tempPrefix = ".holdfast-"

// WatchDir reports changes below a directory.
func (f filesystem) WatchDir(ctx context.Context, r *connect.Request[envd.WatchDirRequest], stream *connect.ServerStream[envd.WatchDirResponse]) error {
	s := sandboxOf(ctx)
	w, err := f.prepare(ctx, s, userOf(r.Header()), r.Msg)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	send := func(m *envd.WatchDirResponse) error {
		mu.Lock()
		defer mu.Unlock()
		return stream.Send(m)
	}
	alive, stop := context.WithCancel(ctx)
	var pinging sync.WaitGroup
	defer pinging.Wait()
	defer stop()
	ready := func() error {
		pinging.Go(func() {
			tick := time.NewTicker(pingOf(r.Header()))
			defer tick.Stop()
			for {
				select {
				case <-alive.Done():
					return
				case <-tick.C:
					_ = send(&envd.WatchDirResponse{Event: &envd.WatchDirResponse_Keepalive{Keepalive: &envd.WatchDirResponse_KeepAlive{}}}) // the next event fails, too
				}
			}
		})
		return send(&envd.WatchDirResponse{Event: &envd.WatchDirResponse_Start{Start: &envd.WatchDirResponse_StartEvent{}}})
	}
	err = f.d.watch(ctx, s, w, ready, func(e *envd.FilesystemEvent) error {
		return send(&envd.WatchDirResponse{Event: &envd.WatchDirResponse_Filesystem{Filesystem: e}})
	})
	if errors.Is(err, holdfast.ErrNotFound) {
		return ended(s.ID)
	}
	return err
}

// CreateWatcher watches a directory for a caller that asks for the events later.
func (f filesystem) CreateWatcher(ctx context.Context, r *connect.Request[envd.CreateWatcherRequest]) (*connect.Response[envd.CreateWatcherResponse], error) {
	s := sandboxOf(ctx)
	w, err := f.prepare(ctx, s, userOf(r.Header()), r.Msg)
	if err != nil {
		return nil, err
	}
	one, err := f.d.watchers.add(s)
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go func() {
		defer close(one.done)
		one.end(f.d.watch(one.ctx, s, w, func() error { close(ready); return nil }, one.put))
	}()
	select {
	case <-ready:
	case <-one.done:
		f.d.watchers.remove(one)
		return nil, one.failure()
	case <-ctx.Done():
		f.d.watchers.remove(one)
		return nil, ctx.Err()
	}
	return connect.NewResponse(&envd.CreateWatcherResponse{WatcherId: one.id}), nil
}

// GetWatcherEvents returns the events since the last call.
func (f filesystem) GetWatcherEvents(ctx context.Context, r *connect.Request[envd.GetWatcherEventsRequest]) (*connect.Response[envd.GetWatcherEventsResponse], error) {
	one, err := f.d.watchers.find(sandboxOf(ctx), r.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	events, err := one.take(ctx)
	return connect.NewResponse(&envd.GetWatcherEventsResponse{Events: events}), err
}

// RemoveWatcher ends a watch.
func (f filesystem) RemoveWatcher(ctx context.Context, r *connect.Request[envd.RemoveWatcherRequest]) (*connect.Response[envd.RemoveWatcherResponse], error) {
	one, err := f.d.watchers.find(sandboxOf(ctx), r.Msg.GetWatcherId())
	if err == nil {
		f.d.watchers.remove(one)
	}
	return connect.NewResponse(&envd.RemoveWatcherResponse{}), err
}
