package preempt

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// gceServer is Google's metadata server, as "View and query VM metadata" describes it:
// 403 without the header or through a proxy. It answers a request with wait_for_change
// when the etag differs from last_etag, or after timeout_sec.
type gceServer struct {
	mu      sync.Mutex
	values  map[string]string
	version int
	changed chan struct{} // closed at a change
	waited  int           // requests that waited to their end
}

func newGCEServer() *gceServer {
	return &gceServer{
		values:  map[string]string{"instance/preempted": "FALSE", "instance/maintenance-event": "NONE"},
		changed: make(chan struct{}),
	}
}

func (g *gceServer) set(key, value string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.values[key] = value
	g.version++
	close(g.changed)
	g.changed = make(chan struct{})
}

// read returns a key's value, its etag, and a channel that closes when any key changes.
func (g *gceServer) read(key string) (value, etag string, changed chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	value = g.values[key]
	return value, fmt.Sprintf("%x", value), g.changed
}

func (g *gceServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, ok := strings.CutPrefix(r.URL.Path, "/computeMetadata/v1/")
	value, etag, changed := g.read(key)
	w.Header().Set("Metadata-Flavor", "Google")
	switch {
	case r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "":
		w.WriteHeader(http.StatusForbidden)
		return
	case !ok || value == "" || r.Method != http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	q := r.URL.Query()
	if q.Get("wait_for_change") == "true" {
		seconds, err := strconv.Atoi(q.Get("timeout_sec"))
		if err != nil || seconds < 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		end := time.After(time.Duration(seconds) * time.Second)
		for waiting := true; waiting && etag == q.Get("last_etag"); {
			select {
			case <-changed:
				value, etag, changed = g.read(key)
			case <-end:
				g.mu.Lock()
				g.waited++
				g.mu.Unlock()
				waiting = false
			case <-r.Context().Done():
				return
			}
		}
	}
	w.Header().Set("ETag", etag)
	_, _ = w.Write([]byte(value))
}

func gceFor(c *cloud, now func() time.Time) *gce {
	g := newGCE(c.url)
	g.wait, g.grace, g.pause, g.now = time.Second, time.Second, time.Millisecond, now
	return g
}

func TestGCEPreemption(t *testing.T) {
	s, clock := newGCEServer(), newClock()
	c := serve(t, s)
	l := listen(t, gceFor(c, clock.now))
	c.turns(t, 4) // the second answers come after a wait without a change
	l.silent(t)
	s.mu.Lock()
	if s.waited == 0 {
		t.Error("no request waited")
	}
	s.mu.Unlock()

	s.set("instance/maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
	l.want(t, Rebalance, "MIGRATE", clock.now().Add(time.Minute))
	s.set("instance/maintenance-event", "NONE")
	l.want(t, Withdrawn, "MIGRATE", time.Time{})
	s.set("instance/preempted", "TRUE")
	n := l.want(t, Terminate, "instance/preempted is TRUE", clock.now().Add(30*time.Second))
	if err := n.Done(t.Context()); err != nil {
		t.Error(err)
	}
	s.set("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
	l.want(t, Terminate, "TERMINATE", clock.now().Add(time.Minute))
	c.turns(t, 2)
	l.silent(t)
	if strings.Contains(l.log.String(), "WARN") {
		t.Error(l.log)
	}
}

func TestGCEWasPreemptedBefore(t *testing.T) {
	s := newGCEServer()
	s.set("instance/preempted", "TRUE")
	l := listen(t, gceFor(serve(t, s), time.Now))
	l.want(t, Terminate, "preempted", time.Time{}) // the time of the change is unknown
}

func TestGCEUnknownEventIsTakenWithCare(t *testing.T) {
	s := newGCEServer()
	s.set("instance/maintenance-event", "SOMETHING_NEW")
	l := listen(t, gceFor(serve(t, s), time.Now))
	l.want(t, Rebalance, "SOMETHING_NEW", time.Time{})
}

func TestGCESurvivesFaults(t *testing.T) {
	s := newGCEServer()
	c := serve(t, s)
	survives(t, c, gceFor(c, time.Now), func() { s.set("instance/preempted", "TRUE") })
}

func TestGCERefusesOthers(t *testing.T) {
	for name, header := range map[string]string{"no flavor": "ETag", "no etag": "Metadata-Flavor"} {
		c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(header, "Google")
			_, _ = w.Write([]byte("TRUE"))
		}))
		err := gceFor(c, time.Now).Run(t.Context(), func(n ...Notice) { t.Errorf("stands: %+v", n) })
		if err == nil || !strings.Contains(err.Error(), "instance/") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
