package docker_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
)

// An engine that shuts down answers with errors that are not about the container.
func TestEngineThatEnds(t *testing.T) {
	for message, want := range map[string]error{
		"failed to update store for object type *libnetwork.endpoint: open : no such file or directory": holdfast.ErrEngine,
		"transport is closing: unavailable":                                                                           holdfast.ErrEngine,
		"grpc: the client connection is closing: context canceled":                                                    holdfast.ErrEngine,
		"failed to update store for object type *libnetwork.endpoint: write /var/lib/docker: no space left on device": nil,
		"OCI runtime create failed: open : no such file or directory":                                                 nil,
		"task 0a1b2c: already exists":                                                                                 engine.ErrInterrupted,
		"Error response from daemon: id already in use":                                                               engine.ErrInterrupted,
		"endpoint with name c already exists in network bridge":                                                       engine.ErrInterrupted,
	} {
		host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/start") {
				w.WriteHeader(http.StatusInternalServerError)
				fmt.Fprintf(w, `{"message": %q}`, message)
			}
		}))
		defer host.Close()
		e := openAt(t, docker.Config{Host: strings.Replace(host.URL, "http://", "tcp://", 1)})
		err := e.Start(t.Context(), "c")
		for _, kind := range []error{holdfast.ErrEngine, engine.ErrInterrupted} {
			if errors.Is(err, kind) != (kind == want) || !strings.Contains(fmt.Sprint(err), message) {
				t.Errorf("%q: got %v, want %v", message, err, want)
			}
		}
	}
}

// An engine that runs as a user says so.
func TestRootless(t *testing.T) {
	for options, want := range map[string]bool{`["name=seccomp,profile=default","name=rootless"]`: true, `["name=seccomp,profile=default"]`: false, `null`: false} {
		host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/info") {
				fmt.Fprintf(w, `{"SecurityOptions": %s}`, options)
			}
		}))
		defer host.Close()
		info, err := openAt(t, docker.Config{Host: strings.Replace(host.URL, "http://", "tcp://", 1)}).Info(t.Context())
		if err != nil || info.Rootless != want {
			t.Errorf("%s: rootless %v, want %v (%v)", options, info.Rootless, want, err)
		}
	}
}

// Podman is told from Docker by the header of its answers.
func TestPodman(t *testing.T) {
	for server, want := range map[string]string{"Docker/20.10.24 (linux)": engine.Docker, "Libpod/4.3.1 (linux)": engine.Podman} {
		host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			w.Header().Set("Server", server)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{}`)
		}))
		defer host.Close()
		info, err := openAt(t, docker.Config{Host: strings.Replace(host.URL, "http://", "tcp://", 1)}).Info(t.Context())
		if err != nil || info.Name != want {
			t.Errorf("%s: got %q, want %q (%v)", server, info.Name, want, err)
		}
	}
}

// An image that is removed within the creation of a container is one that is not there: a
// session pulls it again.
func TestImageRemovedWithinACreate(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.56")
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, `{"message": "parent snapshot sha256:0a1b does not exist: not found"}`)
		}
	}))
	defer host.Close()
	e := openAt(t, docker.Config{Host: strings.Replace(host.URL, "http://", "tcp://", 1)})
	if _, err := e.Create(t.Context(), engine.Spec{Image: "removed"}); !errors.Is(err, engine.ErrNoImage) {
		t.Error(err)
	}
}

// A removal is repeated if the container ended while the engine was about to kill it, and no other
// error of a kill is.
func TestRemovalOfAContainerThatEnds(t *testing.T) {
	for name, c := range map[string]struct {
		says    string
		removed bool
	}{
		"Docker 20.10": {"Could not kill running container a, cannot remove - Container a is not running", true},
		"today's":      {`cannot remove container "a": could not kill container: container a is not running`, true},
		"stuck":        {"Could not kill running container a, cannot remove - tried to kill container, but did not receive an exit event", false},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Api-Version", "1.41")
				w.Header().Set("Content-Type", "application/json")
				if r.Method == http.MethodDelete && calls.Add(1) == 1 {
					w.WriteHeader(http.StatusInternalServerError)
					_ = json.NewEncoder(w).Encode(map[string]string{"message": c.says})
					return
				}
				fmt.Fprint(w, "{}")
			}))
			defer host.Close()
			e := openAt(t, docker.Config{Host: strings.Replace(host.URL, "http://", "tcp://", 1)})
			if err := e.Remove(t.Context(), "a"); (err == nil) != c.removed {
				t.Errorf("%v", err)
			}
		})
	}
}
