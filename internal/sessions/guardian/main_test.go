package guardian_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/kill"
	"holdfast/test/lab/labtest"
)

// TestMain also runs, depending on its arguments, a guardian and a program that kills
// containers and fails on the way. Both have to be processes that can die.
func TestMain(m *testing.M) {
	switch { // os.Exit takes a second under -race
	case len(os.Args) == 3 && os.Args[1] == "guardian":
		syscall.Exit(guardian.Main(os.Args[2], slog.Default()))
	case len(os.Args) == 3 && os.Args[1] == "killer":
		syscall.Exit(killer(os.Args[2]))
	case len(os.Args) == 3 && os.Args[1] == "netAgent":
		syscall.Exit(netAgent(os.Args[2]))
	}
	os.Exit(labtest.Main(m))
}

// container is a container to kill.
type container struct {
	ID, Name string
	Pid      int
}

// order is what a killer process is told to do.
type order struct {
	Socket     string
	Dir        string
	Containers []container
	// At is the step, counted from 1, at which it does Do to itself: kill,
	// stop, or kill-both (its guardian first).
	At int
	Do string
}

func guardianArgv(dir string) []string { return []string{"/proc/self/exe", "guardian", dir} }

// killer kills containers with the engine paused, and prints each step to standard
// output. Its exit code is 0 if all are dead.
func killer(arg string) int {
	var o order
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		return fail(err)
	}
	guard, err := guardian.Start(guardianArgv(o.Dir), slog.Default())
	if err != nil {
		return fail(err)
	}
	defer guard.Close()
	step := 0
	observe := func(name string) {
		step++
		fmt.Println(step, name)
		if step != o.At {
			return
		}
		switch o.Do {
		case "kill":
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		case "stop":
			stopHere()
		case "kill-guardian":
			_ = unix.Kill(guard.Pid(), unix.SIGKILL)
			select {} // this goroutine does nothing more
		case "kill-both":
			halt(guard.Pid()) // the guardian must not act in between
			fmt.Println("guardian", guard.Pid())
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	quiet := &guardian.Engine{Guardian: guard, Socket: o.Socket, Log: slog.Default(), Observe: observe}
	defer quiet.Close()
	var targets []*kill.Target
	for _, c := range o.Containers {
		t, err := kill.Open(c.ID, c.Name, c.Pid)
		if err != nil {
			return fail(err)
		}
		defer t.Close()
		targets = append(targets, t)
	}
	k := kill.Killer{Pauser: quiet, PauseFrom: 1, Observe: observe}
	// As a drain does: the dead containers are released and closed before the engine
	// is continued.
	killed := k.KillPaused(context.Background(), targets)
	killed.Step(kill.StepRelease, func() int {
		for _, t := range targets {
			t.Close()
		}
		return len(targets)
	})
	r := killed.Resume()
	fmt.Printf("report %+v\n", r)
	if len(r.Left) > 0 {
		return 1
	}
	return 0
}

// stopHere stops this process, and this goroutine at once. The kernel delivers a
// signal to the process to its first thread; the other threads run on until that
// thread has taken it.
func stopHere() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// halt stops a process and returns when none of its threads runs: a signal takes a
// moment to be delivered.
func halt(pid int) {
	_ = unix.Kill(pid, unix.SIGSTOP)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			return // the test fails later and shows the reason
		}
		if !slices.ContainsFunc(threads, func(file string) bool {
			b, err := os.ReadFile(file)
			return err == nil && !strings.Contains(string(b), ") T ")
		}) {
			return
		}
	}
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 2
}
