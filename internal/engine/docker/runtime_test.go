package docker_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/engine"
	"holdfast/internal/engine/docker"
	"holdfast/internal/lab"
	"holdfast/internal/lab/labtest"
)

// Whether a runtime works is found out by running something with it, and nothing
// is left of that.
func TestRuntimes(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho it is broken >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	private := labtest.Private(t, lab.Options{Args: append(labtest.RunscArgs(t), "--add-runtime=broken="+broken, "--add-runtime=lost=/nowhere/runtime")})
	e, err := docker.Open(t.Context(), docker.Config{Host: private.Host()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	images, err := e.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{"runc", labtest.RunscRuntime} {
		if err := e.TestRuntime(t.Context(), good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for name, want := range map[string]string{"broken": "broken", "lost": "/nowhere/runtime"} {
		err := e.TestRuntime(t.Context(), name)
		if err == nil || !strings.Contains(err.Error(), want) || holdfast.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", name, err, holdfast.HintOf(err))
		}
	}
	err = e.TestRuntime(t.Context(), "kata")
	if !errors.Is(err, holdfast.ErrNotFound) || !strings.Contains(err.Error(), "runsc") || holdfast.HintOf(err) == "" {
		t.Errorf("kata: %v (%s)", err, holdfast.HintOf(err))
	}
	after, err := e.Images(t.Context())
	if err != nil || len(after) != len(images) {
		t.Errorf("%d images became %d: %v", len(images), len(after), err)
	}
	left, err := e.List(t.Context(), nil)
	if err != nil || len(left) != 0 {
		t.Errorf("%d containers are left: %v", len(left), err)
	}

	id, err := e.Create(t.Context(), engine.Spec{Name: "inside", Image: labtest.TestServer, Runtime: labtest.RunscRuntime, Init: true, NoNewPrivileges: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := e.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
}
