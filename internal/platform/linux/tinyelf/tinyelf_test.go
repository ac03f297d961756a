package tinyelf

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPauseIsAProgramForEachArchitecture(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		program, err := Pause(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 1 || len(program) > 200 {
			t.Errorf("%s: %+v in %d bytes", arch, f.FileHeader, len(program))
		}
	}
	if _, err := Pause("vax"); err == nil {
		t.Error("Pause supports a VAX")
	}
}

func TestExit(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		if p, err := Exit(arch, 1); err != nil || len(p) > 200 {
			t.Errorf("%s: %d bytes, %v", arch, len(p), err)
		}
	}
	if _, err := Exit("vax", 1); err == nil {
		t.Error("Exit supports a VAX")
	}
	program, err := Exit(runtime.GOARCH, 42)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "exit")
	if err := os.WriteFile(file, program, 0o700); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := exec.Command(file).Run(); !errors.As(err, &exit) || exit.ExitCode() != 42 {
		t.Errorf("the program ended with %v, want exit code 42", err)
	}
}

// TestPauseWaits runs the program: it sleeps, ignores other signals and dies of
// SIGKILL.
func TestPauseWaits(t *testing.T) {
	program, err := Pause(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(file, program, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for _, s := range []unix.Signal{unix.SIGSTOP, unix.SIGCONT, unix.SIGWINCH} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("it ended by itself: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	<-ended
}
