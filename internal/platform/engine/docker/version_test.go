package docker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// The containerd of an engine is not waited for if its socket is not there, as in a container
// without it.
func TestContainerdThatIsNotHere(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "docker.sock"))
	if err != nil {
		t.Fatal(err)
	}
	host := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Api-Version", "1.51")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]], "Containerd": {"Address": %q, "Namespaces": {"Containers": "moby"}}}`, filepath.Join(dir, "containerd.sock"))
	}))
	host.Listener.Close()
	host.Listener = l
	host.Start()
	defer host.Close()
	e := openAt(t, docker.Config{Host: "unix://" + l.Addr().String()})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if root, err := e.SnapshotRoot(ctx); root != "" || err != nil {
		t.Errorf("%q, %v", root, err)
	}
}
