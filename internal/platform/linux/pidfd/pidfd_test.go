package pidfd_test

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/pidfd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sleeper(t *testing.T) (*exec.Cmd, *pidfd.Process) {
	t.Helper()
	cmd := exec.Command("sleep", "inf")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	p, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return cmd, p
}

func TestLifeOfAHandle(t *testing.T) {
	cmd, p := sleeper(t)
	if p.Pid() != cmd.Process.Pid || p.Start() == 0 || p.Exited() {
		t.Errorf("pid %d, start %d, exited %v", p.Pid(), p.Start(), p.Exited())
	}
	if again, err := pidfd.OpenStarted(p.Pid(), p.Start()); err != nil {
		t.Error(err)
	} else {
		again.Close()
	}
	if x, err := pidfd.OpenStarted(p.Pid(), p.Start()+1); !errors.Is(err, pidfd.ErrReused) {
		t.Errorf("another start time: %v, %v", x, err)
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if !p.Exited() {
		t.Error("reaped, and not exited")
	}
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, pidfd.ErrGone) {
		t.Errorf("signal after: %v", err)
	}
	if x, err := pidfd.Open(p.Pid()); !errors.Is(err, pidfd.ErrGone) {
		t.Errorf("open after: %v, %v", x, err)
	}
	p.Close()
	p.Close()
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, os.ErrClosed) {
		t.Errorf("signal after close: %v", err)
	}
}

// Open refuses a zombie.
func TestZombie(t *testing.T) {
	cmd, p := sleeper(t)
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !p.Exited(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not die")
		}
	}
	if x, err := pidfd.Open(cmd.Process.Pid); !errors.Is(err, pidfd.ErrGone) {
		t.Errorf("got %v, %v", x, err)
	}
}

func TestReceive(t *testing.T) {
	_, p := sleeper(t)
	var dup int
	if err := p.Control(func(fd int) { dup, _ = unix.Dup(fd) }); err != nil {
		t.Fatal(err)
	}
	q, err := pidfd.Receive(dup, p.Start())
	if err != nil || q.Pid() != p.Pid() || q.Start() != p.Start() {
		t.Fatalf("got %+v, %v", q, err)
	}
	q.Close()
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	if q, err := pidfd.Receive(pipe[0], 1); err == nil {
		t.Errorf("a pipe: %+v", q)
	}
	if err := unix.Close(pipe[0]); err != unix.EBADF {
		t.Errorf("the refused descriptor is still open: %v", err)
	}
}

func TestSet(t *testing.T) {
	s, err := pidfd.NewSet()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var ps []*pidfd.Process
	for i := range 5 {
		_, p := sleeper(t)
		ps = append(ps, p)
		if err := s.Add(p, int32(i)); err != nil {
			t.Fatal(err)
		}
	}
	if tags, err := s.Wait(nil, time.Now().Add(time.Millisecond)); len(tags) > 0 || err != nil {
		t.Errorf("all live: %v, %v", tags, err)
	}
	if err := errors.Join(s.Remove(ps[4]), s.Remove(ps[4])); err != nil {
		t.Error(err)
	}
	for _, i := range []int{1, 3, 4} {
		if err := ps[i].Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	var dead []int32
	for len(dead) < 2 {
		if dead, err = s.Wait(dead, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if slices.Sort(dead); !slices.Equal(dead, []int32{1, 3}) {
		t.Errorf("dead: %v", dead)
	}
	if tags, err := s.Wait(nil, time.Now().Add(time.Millisecond)); len(tags) > 0 || err != nil {
		t.Errorf("a dead process is reported twice: %v, %v", tags, err)
	}
	ended := make(chan error)
	go func() {
		_, err := s.Wait(nil, time.Time{})
		ended <- err
	}()
	s.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("wait on a closed set: %v", err)
	}
}

func FuzzParseFdinfo(f *testing.F) {
	f.Add("pos:\t0\nflags:\t02000002\nPid:\t12\nNSpid:\t12\n")
	f.Add("Pid:\t-1")
	f.Add("NSpid:\t1")
	f.Fuzz(func(t *testing.T, s string) {
		if pid, err := pidfd.ParseFdinfo(s); err != nil && pid != 0 {
			t.Errorf("%q: %d, %v", s, pid, err)
		}
	})
}
