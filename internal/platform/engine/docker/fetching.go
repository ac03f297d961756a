package docker

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/typeurl/v2"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// How often Fetching looks at the downloads, and when it counts one no longer. A pull that
// was cancelled or killed leaves its downloads behind, for hours (moby,
// daemon/containerd/leases.go), and may leave snapshots.
const (
	fetchingEvery = 500 * time.Millisecond
	stalledAfter  = time.Minute      // without a byte, if the open files are unknown
	longExtract   = 10 * time.Minute // of one layer
	// againEvery is how often the snapshots are listed while layers are extracted, in
	// case an event was missed.
	againEvery = 10 * time.Second
	// otherStore is how often an engine with another image store is asked: it may be
	// replaced.
	otherStore = time.Minute
)

// Fetching yields true when the engine begins to fetch or extract layers, for any of its
// clients, and false when it does no longer, until ctx is done. Only an engine with the
// containerd image store on this host yields anything.
func (e *Engine) Fetching(ctx context.Context) iter.Seq[bool] {
	return func(yield func(bool) bool) {
		was := false
		told := func(now bool) bool {
			if now == was {
				return true
			}
			was = now
			return yield(now)
		}
		engine.Resubscribe(ctx, func() (subscribed, more bool) {
			subscribed, more = e.fetching(ctx, told)
			return subscribed, more && told(false)
		})
	}
}

// fetching follows the downloads and extractions until the connection to containerd
// breaks. It reports whether there was one, and whether the reader goes on.
func (e *Engine) fetching(ctx context.Context, yield func(bool) bool) (subscribed, more bool) {
	opening, opened := context.WithTimeout(ctx, storeLimit)
	defer opened()
	s, err := e.openStore(opening)
	if err != nil {
		return false, true
	}
	if s == nil {
		_ = tasks.Sleep(ctx, otherStore)
		return true, true
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(ctx)
	stream, errs := s.EventService().Subscribe(ctx, `topic~="^/snapshot/",namespace==`+s.namespace)
	defer func() {
		cancel()
		for range errs { // closed when the stream's goroutine ends
		}
	}()
	extracting, err := s.unpacks(ctx)
	if err != nil {
		return false, true
	}
	listed := time.Now()
	for {
		select {
		case ev := <-stream:
			extracting.add(ev)
		case now := <-tasks.Tick(fetchingEvery):
			fetching, err := s.fetching(ctx, now)
			if err == nil && len(extracting) > 0 && now.Sub(listed) > againEvery {
				extracting, err = s.unpacks(ctx)
				listed = now
			}
			if err != nil {
				return true, true
			}
			if !yield(fetching || extracting.any(now)) {
				return true, false
			}
		case <-errs:
			return true, true
		}
	}
}

// fetching reports whether any download lasts.
func (s *store) fetching(ctx context.Context, now time.Time) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	all, err := s.ContentStore().ListStatuses(ctx)
	if err != nil || len(all) == 0 {
		return false, err
	}
	if writing, known := s.writing(ctx); known {
		return writing, nil
	}
	for _, st := range all {
		if now.Sub(st.UpdatedAt) < stalledAfter {
			return true, nil
		}
	}
	return false, nil
}

// writing reports whether containerd has the file of any download open, which it has as
// long as the download's client is connected (containerd, plugins/content/local/writer.go).
// It is unknown for a containerd in another pid namespace, before 1.7, and without root.
func (s *store) writing(ctx context.Context) (writing, known bool) {
	server, err := s.IntrospectionService().Server(ctx)
	if err != nil || server.Pid == 0 {
		return false, false
	}
	own, err := os.Stat("/proc/self/ns/pid")
	if err != nil || own.Sys().(*syscall.Stat_t).Ino != server.Pidns {
		return false, false
	}
	dir := fmt.Sprintf("/proc/%d/fd", server.Pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return false, false
	}
	return slices.ContainsFunc(files, func(f os.DirEntry) bool {
		path, _ := os.Readlink(filepath.Join(dir, f.Name())) // "" if it was closed
		return strings.Contains(path, "/ingest/") && filepath.Base(path) == "data"
	}), true
}

// unpacks are the snapshots into which layers are being extracted, with their begin.
type unpacks map[string]time.Time

// unpacks returns the present ones.
func (s *store) unpacks(ctx context.Context) (unpacks, error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	u := unpacks{}
	err := s.SnapshotService(s.snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		u.begin(info.Name, info.Created)
		return nil
	}, "kind==active")
	return u, err
}

func (u unpacks) begin(key string, at time.Time) {
	if strings.HasPrefix(key, unpackKey) {
		u[key] = at
	}
}

func (u unpacks) add(ev *events.Envelope) {
	if ev == nil {
		return
	}
	what, err := typeurl.UnmarshalAny(ev.Event)
	if err != nil {
		return
	}
	switch what := what.(type) {
	case *apievents.SnapshotPrepare:
		u.begin(what.Key, ev.Timestamp)
	case *apievents.SnapshotCommit:
		delete(u, what.Key)
	case *apievents.SnapshotRemove:
		delete(u, what.Key)
	}
}

// any reports whether there is one that does not take too long.
func (u unpacks) any(now time.Time) bool {
	for _, began := range u {
		if now.Sub(began) < longExtract {
			return true
		}
	}
	return false
}
