package cure_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/agent/cureguard"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/sessions/guardian"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
	"holdfast/test/vm/vmtest"
)

func guardianMain(dir string) int { return guardian.Main(dir, slog.New(slog.DiscardHandler)) }

// order is the argument of a squeezer.
type order struct {
	Group, Dir string
	At         string // the step at which it does Do; "" for no step
	Do         string // kill, stop, kill-guardian, kill-both
}

// squeezer runs a squeeze and prints each step.
func squeezer(args []string) error {
	var o order
	if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
		return err
	}
	e, g, err := envHere(o.Dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	did := false
	e.Step = func(step string) {
		fmt.Println(step)
		if step != o.At || did {
			return
		}
		did = true
		switch o.Do {
		case "kill":
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		case "stop":
			_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
		case "kill-guardian":
			killGuardian(g.Pid())
		case "kill-both":
			halt(g.Pid()) // so that it cannot act
			killGuardian(g.Pid())
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	r, err := cure.Memcg(o.Group).Run(context.Background(), e, cure.Options{Apply: true, Bytes: 1 << 20})
	fmt.Printf("ended %v %+v\n", err, r)
	return errors.Join(err, g.Close())
}

// killGuardian kills the guardian if it has been started; before the first plan there is
// none.
func killGuardian(pid int) {
	if pid > 0 {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// halt stops a process and returns when none of its threads runs.
func halt(pid int) {
	if pid == 0 {
		return
	}
	_ = unix.Kill(pid, unix.SIGSTOP)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || !slices.ContainsFunc(threads, func(file string) bool {
			b, err := os.ReadFile(file)
			return err == nil && !strings.Contains(string(b), ") T ")
		}) {
			return
		}
	}
}

// squeezing starts a squeezer and returns when it has reached the step. It returns nil if
// the squeezer ended before.
func squeezing(t *testing.T, o order) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", roleSqueeze, string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == o.At {
			return cmd, lines
		}
		t.Log(lines.Text())
	}
	return nil, nil
}

// limits lists the old limits of the killed squeezes; without -long they alternate.
var limits = []string{"unlimited", "limited"}

// killing is a squeeze that is killed: the limit, the step and the process that is
// killed.
type killing struct{ limit, step, do string }

// killings returns all cases with -long. Otherwise one for each of a step before the
// limit is lowered and a step after it was restored.
func killings() []killing {
	var list []killing
	for i, limit := range limits {
		for j, step := range []string{cure.StepArm, cure.StepLower, cure.StepRestore, cure.StepDisarm} {
			for k, do := range []string{"kill", "kill-guardian", "kill-both"} {
				low := step == cure.StepLower || step == cure.StepRestore
				if labtest.Long() || (low || k == 0) && (j+k)%len(limits) == i {
					list = append(list, killing{limit, step, do})
				}
			}
		}
	}
	return list
}

// If one of the processes is killed at any step, the old limit is restored soon after,
// and the next cure works. On v2 no limit is lowered.
func TestKilledAtEveryStep(t *testing.T) {
	if vmtest.Inside() {
		t.Fatal("the test needs cgroup v1")
	}
	during(t, "zombies", 1000, func(at drill.Running) {
		g := memory(t, at.Group)
		file := filepath.Join(g.Dir(), "memory.limit_in_bytes")
		unlimited := number(t, file)
		for _, k := range killings() {
			old := unlimited
			if k.limit == "limited" {
				old = 900 << 20
			}
			t.Run(k.limit+"/"+k.step+"/"+k.do, func(t *testing.T) {
				if err := os.WriteFile(file, []byte(strconv.FormatInt(old, 10)), 0); err != nil {
					t.Fatal(err)
				}
				testKilled(t, at, k, file, old)
			})
		}
	})
}

// testKilled runs one case with the limit old, which is set in file.
func testKilled(t *testing.T, at drill.Running, k killing, file string, old int64) {
	var dir string
	var cmd *exec.Cmd
	var lines *bufio.Scanner
	for range 10 { // short of memory, the host may reclaim dying groups itself
		keepDead(t, at)
		dir = t.TempDir()
		if cmd, lines = squeezing(t, order{Group: at.Group, Dir: dir, At: k.step, Do: k.do}); cmd != nil {
			break
		}
	}
	if cmd == nil {
		t.Fatalf("the squeezer did not reach step %q", k.step)
	}
	for lines.Scan() {
		t.Log(lines.Text())
	}
	err := cmd.Wait()
	if k.do == "kill-guardian" && err != nil {
		t.Errorf("the squeezer failed after its guardian was killed: %v", err)
	}
	poll.Until(t, "the limit is the old one, and no plan is left", func() bool {
		if k.do == "kill-both" { // as at the next start; the guardian may still be exiting
			if err := cureguard.New(nil, dir, slog.New(slog.DiscardHandler)).Tidy(); err != nil {
				t.Fatal(err)
			}
		}
		files, err := filepath.Glob(dir + "/undo-*")
		return err == nil && len(files) == 0 && number(t, file) == old
	})
	list, err := cure.Journal{Path: filepath.Join(dir, cure.FileName)}.List(0)
	if err != nil || len(list) != 1 || (list[0].Error == "") != (k.do == "kill-guardian") {
		t.Errorf("journal: %+v, %v", list, err)
	}
}

// keepDead creates new dying groups if the last squeeze has freed most of them.
func keepDead(t *testing.T, at drill.Running) {
	t.Helper()
	g := memory(t, at.Group)
	name := filepath.Join(onDisk(t), "pages")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(); os.Remove(name) })
	const each = 512 << 10
	for i := range 4 { // 2 MiB, twice what a squeezer may free
		dir := filepath.Join(g.Dir(), fmt.Sprintf("dead-%d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		child := start(t, roleWriter, dir, name, fmt.Sprint(i*each), fmt.Sprint(each))
		_ = child.Wait()
		poll.Until(t, "the group is removed", func() bool { return unix.Rmdir(dir) == nil })
	}
}

// If a squeezer hangs while the limit is low, its guardian restores the limit at the
// deadline.
func TestStopped(t *testing.T) {
	during(t, "zombies", 500, func(at drill.Running) {
		g := memory(t, at.Group)
		file := filepath.Join(g.Dir(), "memory.limit_in_bytes")
		old := number(t, file)
		var cmd *exec.Cmd
		for range 10 { // the kernel may not reclaim enough to lower it
			keepDead(t, at)
			var lines *bufio.Scanner
			if cmd, lines = squeezing(t, order{Group: at.Group, Dir: t.TempDir(), At: cure.StepRestore, Do: "stop"}); cmd == nil {
				continue
			}
			if number(t, file) < old {
				break
			}
			if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			for lines.Scan() { // until it ends, because only one may run at a time
			}
			cmd = nil
		}
		if cmd == nil {
			t.Fatal("the squeezer did not lower the limit")
		}
		poll.Until(t, "the limit is the old one", func() bool { return number(t, file) == old })
		if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Error(err)
		}
	})
}

// Two concurrent cures of one group, or of a group and one above it, are refused; those
// of separate groups are not.
func TestOneAtATime(t *testing.T) {
	top := newGroup(t, "/cure-test-one")
	dir := t.TempDir()
	during(t, "zombies", 500, func(at drill.Running) {
		cmd, _ := squeezing(t, order{Group: at.Group, Dir: dir, At: cure.StepArm, Do: "stop"})
		if cmd == nil {
			t.Fatal("the squeezer did not begin")
		}
		e := env(t)
		for name, c := range map[string]cure.Cure{
			"the group": cure.Memcg(at.Group), "another cure": cure.Dentries(at.Group),
			"above": cure.Dentries(filepath.Dir(at.Group)),
		} {
			if r, err := c.Run(t.Context(), e, cure.Options{Apply: true}); !errors.Is(err, holdfast.ErrBusy) {
				t.Errorf("%s: %v, %+v", name, err, r)
			}
		}
		if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Error(err)
		}
		livePages(t, top, 4)
		if _, err := cure.Dentries(top.Path).Run(t.Context(), e, cure.Options{Apply: true}); err != nil {
			t.Errorf("cure of another group: %v", err)
		}
	})
}
