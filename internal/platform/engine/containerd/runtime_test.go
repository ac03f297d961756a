package containerd_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/platform/engine/containerd"
	"holdfast/internal/platform/engine/enginetest"
	"holdfast/internal/platform/runsc"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// runtimes are programs in place of runc, some of which do not work.
func runtimes(t *testing.T, _ *containerd.Engine, daemon *lab.Containerd) {
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
	c := labtest.ContainerdConfig(daemon)
	c.Runtimes = map[string]string{labtest.RunscRuntime: saver.Program, "boxed": boxed, "broken": broken, "lost": "/nowhere/runtime"}
	enginetest.RunRuntimes(t, enginetest.Runtimes{
		Engine: labtest.OpenContainerd(t, c), Image: labtest.Busybox, Good: []string{"runc", labtest.RunscRuntime, "boxed"},
		Broken:  map[string]string{"broken": "broken", "lost": "/nowhere/runtime"},
		Sandbox: "boxed", Saver: saver,
	}, dir)
}
