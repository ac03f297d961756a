package docker_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/engine/enginetest"
	"holdfast/internal/platform/runsc"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

func TestRuntimes(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho it is broken >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	saver := runsc.Runtime{Program: labtest.Runsc(t), Images: filepath.Join(dir, "staged")}
	boxed := filepath.Join(dir, "boxed")
	if err := errors.Join(os.Mkdir(saver.Images, 0o700), saver.Install(boxed)); err != nil {
		t.Fatal(err)
	}
	private := labtest.Private(t, lab.Options{Args: append(labtest.RunscArgs(t),
		"--add-runtime=boxed="+boxed, "--add-runtime=broken="+broken, "--add-runtime=lost=/nowhere/runtime")})
	busybox, err := lab.Busybox()
	if err == nil {
		err = private.Import(t.Context(), busybox)
	}
	if err != nil {
		t.Fatal(err)
	}
	e := openAt(t, docker.Config{Host: private.Host()})
	enginetest.RunRuntimes(t, enginetest.Runtimes{
		Engine: e, Image: labtest.Busybox, Good: []string{"runc", labtest.RunscRuntime, "boxed"},
		Broken:  map[string]string{"broken": "broken", "lost": "/nowhere/runtime"},
		Sandbox: "boxed", Saver: saver,
	}, dir)
}
