package deathsig_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"holdfast/internal/platform/linux/deathsig"
)

// parent makes this program start a sleep with a death signal, report it and wait to
// be killed.
const parent = "HOLDFAST_TEST_DEATHSIG_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parent) == "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("sleep", "600")
	cmd.Stdout = os.Stdout // the sleep has it open as long as it lives
	if _, err := deathsig.Start(cmd, syscall.SIGKILL); err != nil {
		panic(err)
	}
	os.Stdout.WriteString("started")
	select {}
}

func TestDiesWithTheProcess(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), parent+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, len("started"))
	if _, err := io.ReadFull(out, said); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err != nil { // until the sleep is gone as well
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

// TestOutlivesTheThread ends the goroutine that started the child with its thread,
// which would send the signal if the child were that thread's.
func TestOutlivesTheThread(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan (<-chan error))
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		e, err := deathsig.Start(cmd, syscall.SIGKILL)
		if err != nil {
			t.Error(err)
		}
		ended <- e
	}()
	e := <-ended
	if e == nil {
		return
	}
	for range 100 { // threads come and go
		gone := make(chan struct{})
		go func() { runtime.LockOSThread(); close(gone) }()
		<-gone
	}
	in.Close()
	if err := <-e; err != nil {
		t.Errorf("cat ended with %v before it had read to the end", err)
	}
}

func TestErrors(t *testing.T) {
	if _, err := deathsig.Start(exec.Command("/does/not/exist"), syscall.SIGKILL); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing program: %v", err)
	}
	var exit *exec.ExitError
	if err := deathsig.Run(exec.Command("false"), syscall.SIGKILL); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("false: %v", err)
	}
}
