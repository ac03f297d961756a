package session

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A server that needs longer than probeLimit for each answer becomes ready.
func TestSlowAnswerIsReady(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(probeLimit + probeLimit/20):
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	alive := func() bool { return true }
	if err := awaitReady(t.Context(), s.Listener.Addr().String(), Readiness{HTTPPath: "/", Timeout: time.Minute}, alive); err != nil {
		t.Error(err)
	}
}
