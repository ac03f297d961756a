package hook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// parent is the environment variable by which this binary is started as a
// process that runs a hook and is killed.
const parent = "HOOK_TEST_PARENT"

func TestMain(m *testing.M) {
	if file := os.Getenv(parent); file != "" {
		Run(context.Background(), shell("echo $$ > "+file+"; exec sleep 600"))
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func shell(script string) Command { return Command{Args: []string{"/bin/sh", "-c", script}} }

// within gives a run a deadline.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestCommandSeesWhatItIsGivenAndNothingElse(t *testing.T) {
	t.Setenv("HOLDFAST_SECRET", "1")
	t.Setenv("NOTIFY_SOCKET", "/x")
	t.Setenv("THEIRS", "kept")
	c := Command{
		Args: []string{"/bin/sh", "-c", `echo "$1|$2|$WHO|$THEIRS|$HOLDFAST_SECRET$NOTIFY_SOCKET|$(pwd)|$(cat | wc -c)"; echo problem >&2`, "sh", "a b", "$(id)"},
		Env:  []string{"WHO=alice"},
	}
	r := Run(within(t, time.Minute), c)
	if want := "a b|$(id)|alice|kept||/|0\nproblem\n"; r.Err != nil || r.Output != want || r.Took <= 0 {
		t.Errorf("%+v, want the output %q", r, want)
	}
	// As if this process had been started with it.
	fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r = Run(within(t, time.Minute), Command{Args: []string{"/bin/ls", "/proc/self/fd"}})
	if r.Err != nil || r.Output != "0\n1\n2\n3\n" { // the last is its own, of the directory
		t.Errorf("descriptors: %+v", r)
	}
}

func TestCommandThatFailsSaysHow(t *testing.T) {
	var exit *exec.ExitError
	if r := Run(within(t, time.Minute), shell("echo disk full; exit 3")); !errors.As(r.Err, &exit) || exit.ExitCode() != 3 || r.Output != "disk full\n" {
		t.Errorf("%+v", r)
	}
	if r := Run(within(t, time.Minute), Command{Args: []string{"/no/such/program"}}); !errors.Is(r.Err, os.ErrNotExist) {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{nil, {"sh", "-c", "true"}} {
		if r := Run(within(t, time.Minute), Command{Args: args}); r.Err == nil {
			t.Errorf("%q ran", args)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := Run(ctx, shell("true")); !errors.Is(r.Err, context.Canceled) {
		t.Errorf("after its time: %+v", r)
	}
}

// pids reads what a script wrote of its processes, once there are n.
func pids(t *testing.T, file string, n int) []int {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasSuffix(string(text), "\n") {
			continue
		}
		var out []int
		for _, word := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, pid)
		}
		if len(out) >= n {
			return out
		}
	}
	t.Fatalf("%s never had %d processes", file, n)
	return nil
}

// dies waits until a process is dead, if nobody has reaped it or not.
func dies(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ") {
			return
		}
	}
	t.Errorf("process %d lives", pid)
}

func TestDeadlineKillsTheCommandWithItsChildren(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	done := make(chan Result, 1)
	script := `trap '' TERM INT; echo begun; sleep 600 & a=$!; sh -c 'trap "" TERM; sleep 600; true' & echo "$$ $a $!" > ` + file + `; wait; wait`
	go func() { done <- Run(ctx, shell(script)) }()
	started := pids(t, file, 3)
	why := errors.New("the lease is lost")
	cancel(why)
	if r := <-done; !errors.Is(r.Err, why) || r.Output != "begun\n" {
		t.Errorf("%+v", r)
	}
	for _, pid := range started {
		dies(t, pid)
	}

	if r := Run(within(t, 50*time.Millisecond), shell("sleep 600")); !errors.Is(r.Err, ErrTime) {
		t.Errorf("%+v", r)
	}
}

func TestWhatACommandLeavesInItsGroupIsKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	r := Run(within(t, time.Minute), shell("sleep 600 & echo $! > "+file+"; echo done"))
	if r.Err != nil || r.Output != "done\n" {
		t.Errorf("%+v", r)
	}
	for _, pid := range pids(t, file, 1) {
		dies(t, pid)
	}
}

// TestWhatHasLeftTheGroupHoldsNobodyUp although it has the output open.
func TestWhatHasLeftTheGroupHoldsNobodyUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	r := Run(within(t, time.Minute), shell("setsid sh -c 'echo $$ > "+file+"; exec sleep 600' & while [ ! -s "+file+" ]; do sleep 0.01; done; echo done"))
	for _, pid := range pids(t, file, 1) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	if r.Err != nil || r.Output != "done\n" {
		t.Errorf("%+v", r)
	}
}

func TestOnlyTheEndOfTheOutputIsKept(t *testing.T) {
	r := Run(within(t, time.Minute), shell("head -c 50000000 /dev/zero | tr '\\0' x; echo end"))
	if r.Err != nil || len(r.Output) != maxOutput || !strings.HasSuffix(r.Output, "xend\n") {
		t.Errorf("%v, %d bytes", r.Err, len(r.Output))
	}
	// One that never ends, too.
	r = Run(within(t, 200*time.Millisecond), shell("while :; do echo more and more; done"))
	if !errors.Is(r.Err, ErrTime) || len(r.Output) > maxOutput {
		t.Errorf("%v, %d bytes", r.Err, len(r.Output))
	}
}

// TestCommandDiesWithItsStarter: a hook does not go on for a session that the
// next agent has given to somebody else.
func TestCommandDiesWithItsStarter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), parent+"="+file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started := pids(t, file, 1)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	dies(t, started[0])
}
