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

// parent is an environment variable that makes this binary a process that runs a hook
// and is then killed. Its value is a directory. limit is the variable with the hook's
// time limit.
const parent, limit = "HOOK_TEST_PARENT", "HOOK_TEST_LIMIT"

// runner runs this binary as the keeper.
var runner = Runner{"/proc/self/exe", "keeper"}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		unix.Exit(Main(os.Args[2:])) // os.Exit takes a second under -race
	}
	if dir := os.Getenv(parent); dir != "" {
		ctx := context.Background()
		if d, err := time.ParseDuration(os.Getenv(limit)); err == nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
		fmt.Println(runner.Run(ctx, shell(family(filepath.Join(dir, "pids")))).Err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// family is a script that starts a child, an orphaned grandchild, and a process in a
// session of its own. All ignore the signals that can be ignored. The script writes
// the four pids to a file and keeps running.
func family(file string) string {
	return `trap '' TERM INT HUP
sleep 600 & child=$!
sh -c 'sleep 600 & echo $! > ` + file + `.lost'
setsid sh -c 'echo $$ > ` + file + `.away; exec sleep 600' &
while [ ! -s ` + file + `.away ]; do sleep 0.01; done
echo $$ $child $(cat ` + file + `.lost ` + file + `.away) > ` + file + `
wait; wait; sleep 600`
}

func shell(script string) Command { return Command{Args: []string{"/bin/sh", "-c", script}} }

// within returns a context with a deadline.
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
		Args: []string{"/bin/sh", "-c", `echo "$1|$2|$NAME_OF|$THEIRS|$HOLDFAST_SECRET$NOTIFY_SOCKET|$(pwd)|$(cat | wc -c)"; echo problem >&2`, "sh", "a b", "$(id)"},
		Env:  []string{"NAME_OF=alice"},
	}
	r := runner.Run(within(t, time.Minute), c)
	if want := "a b|$(id)|alice|kept||/|0\nproblem\n"; r.Err != nil || r.Output != want || r.Took <= 0 {
		t.Errorf("%+v, want the output %q", r, want)
	}
	// A descriptor that this process might have been started with.
	fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r = runner.Run(within(t, time.Minute), Command{Args: []string{"/bin/ls", "/proc/self/fd"}})
	if r.Err != nil || r.Output != "0\n1\n2\n3\n" { // the last one is that of the directory that ls reads
		t.Errorf("descriptors: %+v", r)
	}
}

func TestCommandThatFailsSaysHow(t *testing.T) {
	if r := runner.Run(within(t, time.Minute), shell("echo disk full; exit 3")); r.Err == nil || r.Err.Error() != "exit status 3" || r.Output != "disk full\n" {
		t.Errorf("%+v", r)
	}
	if r := runner.Run(within(t, time.Minute), shell("kill -TERM $$")); r.Err == nil || r.Err.Error() != "signal: terminated" {
		t.Errorf("%+v", r)
	}
	if r := runner.Run(within(t, time.Minute), Command{Args: []string{"/no/such/program"}}); !errors.Is(r.Err, os.ErrNotExist) {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{nil, {"sh", "-c", "true"}} {
		if r := runner.Run(within(t, time.Minute), Command{Args: args}); r.Err == nil {
			t.Errorf("%q ran", args)
		}
	}
	if r := Runner(nil).Run(within(t, time.Minute), shell("true")); r.Err == nil {
		t.Error("it ran without a keeper")
	}
	if r := (Runner{"/bin/true"}).Run(within(t, time.Minute), shell("true")); r.Err == nil {
		t.Error("a keeper without an outcome counts as a command that succeeded")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := runner.Run(ctx, shell("true")); !errors.Is(r.Err, context.Canceled) {
		t.Errorf("after its time: %+v", r)
	}
}

// pids reads the pids that a script has written, once there are n.
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

// dies waits until a process is dead, reaped or not.
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
	go func() { done <- runner.Run(ctx, shell("echo begun; "+family(file))) }()
	started := pids(t, file, 4)
	why := errors.New("the lease is lost")
	cancel(why)
	if r := <-done; !errors.Is(r.Err, why) || r.Output != "begun\n" {
		t.Errorf("%+v", r)
	}
	for _, pid := range started {
		dies(t, pid)
	}

	if r := runner.Run(within(t, 50*time.Millisecond), shell("sleep 600")); !errors.Is(r.Err, ErrTime) {
		t.Errorf("%+v", r)
	}
}

// TestWhatACommandLeavesIsKilled: processes that a command leaves behind are killed,
// in whatever session they are. Run does not wait for them although they have the
// output open.
func TestWhatACommandLeavesIsKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	r := runner.Run(within(t, time.Minute), shell(strings.Replace(family(file), "wait; wait; sleep 600", "echo done", 1)))
	if r.Err != nil || r.Output != "done\n" {
		t.Errorf("%+v", r)
	}
	for _, pid := range pids(t, file, 4) {
		dies(t, pid)
	}
}

func TestOnlyTheEndOfTheOutputIsKept(t *testing.T) {
	r := runner.Run(within(t, time.Minute), shell("head -c 50000000 /dev/zero | tr '\\0' x; echo end"))
	if r.Err != nil || len(r.Output) != maxOutput || !strings.HasSuffix(r.Output, "xend\n") {
		t.Errorf("%v, %d bytes", r.Err, len(r.Output))
	}
	// The same for output that never ends.
	r = runner.Run(within(t, 200*time.Millisecond), shell("while :; do echo more and more; done"))
	if !errors.Is(r.Err, ErrTime) || len(r.Output) > maxOutput {
		t.Errorf("%v, %d bytes", r.Err, len(r.Output))
	}
}

// startParent starts a process that runs a hook, and returns it with the pids that
// the hook has started.
func startParent(t *testing.T, limited string) (*exec.Cmd, []int) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), parent+"="+dir, limit+"="+limited)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
	})
	return cmd, pids(t, filepath.Join(dir, "pids"), 4)
}

// TestCommandDiesWithItsStarter, and so does all that it has started: a hook must not
// go on for a session that may have another owner by then.
func TestCommandDiesWithItsStarter(t *testing.T) {
	cmd, started := startParent(t, "")
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	for _, pid := range started {
		dies(t, pid)
	}
}

// TestDeadlineOfAStoppedStarter: a process that is stopped cannot end its hook.
func TestDeadlineOfAStoppedStarter(t *testing.T) {
	cmd, started := startParent(t, "5s")
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, pid := range started {
		dies(t, pid)
	}
}

// TestKeeperThatIsKilledTakesTheCommandAlong: the kernel kills the command when the
// keeper dies.
func TestKeeperThatIsKilledTakesTheCommandAlong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	done := make(chan Result, 1)
	go func() { done <- runner.Run(within(t, time.Minute), shell("echo $PPID $$ > "+file+"; exec sleep 600")) }()
	two := pids(t, file, 2)
	if err := unix.Kill(two[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.Err == nil {
		t.Errorf("%+v", r)
	}
	dies(t, two[1])
}
