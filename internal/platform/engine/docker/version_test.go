package docker_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client/pkg/versions"

	"holdfast"
	"holdfast/internal/platform/engine/docker"
)

// An engine that is replaced by a newer or an older one is used with a version that it supports.
func TestVersionOfAnotherEngine(t *testing.T) {
	var runs atomic.Pointer[[2]string] // the lowest and the highest version
	runs.Store(&[2]string{"1.12", "1.41"})
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		least, most := runs.Load()[0], runs.Load()[1]
		w.Header().Set("Api-Version", most)
		w.Header().Set("Content-Type", "application/json")
		asked, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v"), "/")
		switch {
		case asked == "": // _ping has no version
		case versions.LessThan(asked, least):
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"message": "client version %s is too old. Minimum supported API version is %s, please upgrade your client to a newer version"}`, asked, least)
			return
		case versions.GreaterThan(asked, most):
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"message": "client version %s is too new. Maximum supported API version is %s"}`, asked, most)
			return
		}
		fmt.Fprint(w, "{}")
	}))
	defer host.Close()
	e := openAt(t, docker.Config{Host: strings.Replace(host.URL, "http://", "tcp://", 1)})
	for _, c := range []struct{ least, most, want string }{
		{"1.12", "1.41", "1.41"},
		{"1.44", "1.56", "1.56"},
		{"1.12", "1.41", "1.41"},
		{"1.44", "1.99", "1.56"}, // newer than the client
	} {
		runs.Store(&[2]string{c.least, c.most})
		info, err := e.Info(t.Context())
		if errors.Is(err, holdfast.ErrEngine) { // what waits for the engine tries again
			info, err = e.Info(t.Context())
		}
		if err != nil || info.APIVersion != c.want {
			t.Errorf("an engine with %s to %s: version %q, %v; want %s", c.least, c.most, info.APIVersion, err, c.want)
		}
	}
}
