package docker_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"holdfast/internal/platform/engine/docker"
)

// TestActivityReportsABreak: the stream reports a gap if the engine dies in the middle
// of its answer, or answers with an error.
func TestActivityReportsABreak(t *testing.T) {
	since := time.Now().Add(-time.Hour)
	event := func(at time.Time) string {
		return fmt.Sprintf(`{"Type":"image","Action":"pull","Actor":{"ID":"app:1"},"time":%d,"timeNano":%d}`+"\n", at.Unix(), at.UnixNano())
	}
	for name, x := range map[string]struct {
		answer func(http.ResponseWriter)
		want   string // p for a pull, g for a gap
	}{
		"complete": {func(w http.ResponseWriter) { fmt.Fprint(w, event(since.Add(time.Minute))) }, "p"},
		"a break": {func(w http.ResponseWriter) {
			fmt.Fprint(w, event(since.Add(time.Minute)))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "pg"},
		"no answer": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "g"},
		"an error":  {func(w http.ResponseWriter) { http.Error(w, "{}", http.StatusInternalServerError) }, "g"},
	} {
		t.Run(name, func(t *testing.T) {
			host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Api-Version", "1.41")
				w.Header().Set("Content-Type", "application/json")
				switch {
				case !strings.HasSuffix(r.URL.Path, "/events"):
					fmt.Fprint(w, "OK")
				case r.URL.Query().Get("since") == "1": // the request for the events that the engine has kept
					fmt.Fprint(w, event(since.Add(-time.Minute)))
				default:
					x.answer(w)
				}
			}))
			defer host.Close()
			e := openAt(t, docker.Config{Host: strings.Replace(host.URL, "http://", "tcp://", 1)})
			got := ""
			for a := range e.Activity(t.Context(), since, time.Now()) {
				if a.Gap {
					got += "g"
				} else if a.Image == "app:1" {
					got += "p"
				}
			}
			if got != x.want {
				t.Errorf("told %q, want %q", got, x.want)
			}
		})
	}
}
