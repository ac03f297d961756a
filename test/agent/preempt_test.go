package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"holdfast/test/poll"
)

// metadata is the part of Google's metadata service that reports a preemption. The value is
// FALSE until preempted is closed. A request that waits for a change is answered then.
func metadata(t *testing.T, preempted <-chan struct{}) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata-Flavor") != "Google" {
			http.Error(w, "no Metadata-Flavor", http.StatusForbidden)
			return
		}
		w.Header().Set("Metadata-Flavor", "Google")
		value, changed := "NONE", (<-chan struct{})(nil)
		if strings.HasSuffix(r.URL.Path, "/instance/preempted") {
			value, changed = "FALSE", preempted
		}
		etag := "e0"
		waits := r.URL.Query().Get("last_etag") == etag
		select {
		case <-changed:
			value, etag, waits = "TRUE", "e1", r.URL.Query().Get("last_etag") == "e1"
		default:
		}
		if waits {
			select {
			case <-changed:
				value, etag = "TRUE", "e1"
			case <-r.Context().Done():
				return
			case <-time.After(time.Minute):
			}
		}
		w.Header().Set("ETag", etag)
		_, _ = io.WriteString(w, value)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func TestPreemptionNoticeDrainsTheNode(t *testing.T) {
	preempted := make(chan struct{})
	service := metadata(t, preempted)
	h := newHost(t, "preempt: {gce: {enabled: true, endpoint: '"+service.URL+"'}}")
	h.start()
	h.open("alice")
	inits := h.inits()
	close(preempted)
	poll.Until(t, "the container is dead", func() bool { return !alive(inits["alice"]) })
	poll.Until(t, "the session is given up", func() bool { return len(h.sessions()) == 0 })
	res, _ := h.get("/s/alice/")
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a host that goes away takes a session: %s", res.Status)
	}
	metrics, err := http.Get("http://" + h.apiTCP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Body.Close()
	if want := `holdfast_preemption_notices_total{kind="terminate",source="gce"} 1`; !strings.Contains(readAll(t, metrics.Body), want) {
		t.Errorf("/metrics has no %s", want)
	}
}

func TestNodeKeepsItsID(t *testing.T) {
	h := newHost(t, "")
	h.start()
	h.open("alice")
	h.must("agent", "stop", "--keep")
	h.wait()
	r := h.cli("agent", "--config", h.configFile(), "--node", "another")
	wantError(t, r, 1, "belongs to node "+h.node+", not to node another", "call the node "+h.node+" again")
	h.start()
	h.open("alice")
	if n := len(h.running()["alice"]); n != 1 {
		t.Errorf("%d containers", n)
	}
}
