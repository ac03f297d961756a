package tinyelf

import (
	"bytes"
	"debug/elf"
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
		t.Error("there is one for a vax")
	}
}

// TestPauseWaits runs it: it sleeps, wakes for nothing and dies when it is killed.
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
