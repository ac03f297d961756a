package doctor

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

func TestInvalidDurations(t *testing.T) {
	for _, d := range []string{"0", "0s", "-5s", "1ms", "11m", "9999999h", "99999999999999999999h", "soon", ""} {
		for _, line := range [][]string{{"doctor", "--for", d}, {"doctor", "drill", "throttle", "--for", d}} {
			got := finish(t, command(t, "", nil, line...))
			if got.code != 2 || !strings.HasPrefix(got.errs, "error: ") || !strings.Contains(got.errs, "\nhint: ") || got.out != "" {
				t.Errorf("%q: exit code %d: %s%s", line, got.code, got.out, got.errs)
			}
		}
	}
}

func TestUnknownDrill(t *testing.T) {
	got := finish(t, command(t, "", nil, "doctor", "drill", "earthquake"))
	if got.code != 2 || !strings.Contains(got.errs, `there is no drill "earthquake"`) || !strings.Contains(got.errs, "hint: ") {
		t.Errorf("exit code %d: %s", got.code, got.errs)
	}
}

// starting runs a command and returns when it has written a line with the words.
func starting(t *testing.T, cmd *exec.Cmd, words string) (rest *bytes.Buffer, wait func() int) {
	t.Helper()
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	lines := bufio.NewReader(errs)
	seen := ""
	for !strings.Contains(seen, words) {
		line, err := lines.ReadString('\n')
		seen += line
		if err != nil {
			t.Fatalf("%v: the command ended with: %s", err, seen)
		}
	}
	rest = &bytes.Buffer{}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(rest, lines)
	}()
	return rest, func() int {
		<-copied
		_ = cmd.Wait() // the exit code is the result
		limit.Stop()
		return cmd.ProcessState.ExitCode()
	}
}

// An interrupt ends an examination at any step and leaves nothing behind.
func TestInterrupted(t *testing.T) {
	for _, step := range []string{"testing the machine: machine", "testing the machine: alloc", "observing"} {
		cmd := command(t, "", nil, "doctor", "--for", "10m")
		rest, wait := starting(t, cmd, step)
		if err := cmd.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := wait(); code != 130 || !strings.Contains(rest.String(), "error: interrupted") {
			t.Errorf("%s: exit code %d: %s", step, code, rest)
		}
		// A process with the same pid in another pid namespace may have such a group for
		// a moment.
		poll.Until(t, "the end of its control group", func() bool {
			mine := fmt.Sprintf("holdfast-doctor-%d-", cmd.Process.Pid)
			return len(groups(t, func(name string) bool { return strings.HasPrefix(name, mine) })) == 0
		})
	}
}

// drillIn starts a drill with its files in a directory.
func drillIn(t *testing.T, dir string) (cmd *exec.Cmd, wait func() int) {
	t.Helper()
	cmd = command(t, "", nil, "doctor", "drill", "throttle", "--for", "5m", "--dir", dir)
	_, wait = starting(t, cmd, "the pathology exists")
	return cmd, wait
}

// stages returns the drills' directories below a directory.
func stages(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "holdfast-drill-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// names returns the last elements of paths.
func names(paths []string) []string {
	var out []string
	for _, p := range paths {
		out = append(out, filepath.Base(p))
	}
	return out
}

// Two concurrent drills in one directory do not remove each other's resources.
func TestDrillTwice(t *testing.T) {
	dir := t.TempDir()
	first, wait1 := drillIn(t, dir)
	second, wait2 := drillIn(t, dir)
	both := stages(t, dir)
	if len(both) != 2 {
		t.Errorf("stages: %v", both)
	}
	for i, c := range []struct {
		cmd  *exec.Cmd
		wait func() int
	}{{first, wait1}, {second, wait2}} {
		if err := c.cmd.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := c.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if got := stages(t, dir); len(got) != 1-i {
			t.Errorf("stages after %d ended: %v", i+1, got)
		}
	}
	noGroups(t, names(both)...)
}

// The next drill removes what a killed drill has left, whatever its directory, and leaves
// living drills alone.
func TestDrillKilled(t *testing.T) {
	one, two, three := t.TempDir(), t.TempDir(), t.TempDir()
	killed, waitKilled := drillIn(t, one)
	alive, waitAlive := drillIn(t, two)
	if err := killed.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitKilled()
	all := append(stages(t, one), stages(t, two)...)
	if len(stages(t, one)) != 1 {
		t.Fatal("the killed drill left nothing, so the test cannot check its removal")
	}
	got := finish(t, command(t, "", nil, "doctor", "drill", "throttle", "--for", "1s", "--dir", three))
	if got.code != 0 {
		t.Fatalf("exit code %d: %s", got.code, got.errs)
	}
	if left := append(stages(t, one), stages(t, three)...); len(left) > 0 || len(stages(t, two)) != 1 {
		t.Errorf("left: %v; alive: %v", left, stages(t, two))
	}
	if err := alive.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := waitAlive(); code != 0 {
		t.Errorf("the living drill: exit code %d", code)
	}
	noGroups(t, names(all)...)
	if links, err := os.ReadDir("/run/holdfast/drills"); err != nil || len(links) > 0 {
		t.Errorf("still registered: %v, %v", links, err)
	}
}

// The same for a drill in containers, which keep running when the drill is killed.
func TestDrillInContainersKilled(t *testing.T) {
	api := labtest.Docker(t)
	cmd := command(t, "", nil, "doctor", "drill", "throttle", "--for", "5m", "--dir", t.TempDir(), "--image", labtest.Busybox)
	_, wait := starting(t, cmd, "the pathology exists")
	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait()
	labels := map[string]string{"holdfast.drill": ""}
	if list, err := api.List(t.Context(), labels); err != nil || len(list) != 1 {
		t.Fatalf("containers of the killed drill: %+v, %v", list, err)
	}
	if got := finish(t, command(t, "", nil, "doctor", "drill", "throttle", "--for", "1s", "--dir", t.TempDir())); got.code != 0 {
		t.Fatalf("exit code %d: %s", got.code, got.errs)
	}
	if list, err := api.List(t.Context(), labels); err != nil || len(list) != 0 {
		t.Errorf("containers left: %+v, %v", list, err)
	}
}
