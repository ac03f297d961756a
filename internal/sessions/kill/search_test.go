package kill_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/kill/killtest"
)

// groupTree makes control groups below one of the test's own and removes them
// at its end.
type groupTree struct {
	t    *testing.T
	root string
}

func newGroupTree(t *testing.T) groupTree {
	t.Helper()
	top := "/sys/fs/cgroup"
	if _, err := os.Stat(top + "/freezer"); err == nil {
		top += "/freezer"
	}
	g := groupTree{t, filepath.Join(top, fmt.Sprintf("holdfast-search-%d", os.Getpid()))}
	g.add("")
	return g
}

// add makes a group.
func (g groupTree) add(path string) string {
	g.t.Helper()
	dir := filepath.Join(g.root, path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			err := os.Remove(dir)
			if err == nil {
				return
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(end) { // what was just reaped may be counted for a moment
				g.t.Error(err)
				return
			}
		}
	})
	return dir
}

// sleeper runs in a group until it is killed.
func (g groupTree) sleeper(dir string) *exec.Cmd {
	g.t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead
		_ = cmd.Wait()         // killed
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		g.t.Fatal(err)
	}
	return cmd
}

// Containers are found as each driver names their groups (cgroupfs, systemd),
// at any depth, and what is found can be killed; others are left alone.
func TestSearch(t *testing.T) {
	tree := newGroupTree(t)
	plain, scope, absent, ours := strings.Repeat("0a", 32), strings.Repeat("1b", 32), strings.Repeat("2c", 32), strings.Repeat("3d", 32)
	tree.add("docker")
	a := tree.add("docker/" + plain)
	tree.add("docker/" + plain + "/below")
	tree.add("machine.slice")
	tree.add("machine.slice/pod.slice")
	b := tree.add("machine.slice/pod.slice/docker-" + scope + ".scope")
	c := tree.add("docker/" + strings.Repeat("4e", 32))
	inA, inB, inC := tree.sleeper(a+"/below"), tree.sleeper(b), tree.sleeper(c)

	// The group that this very process is in is never given out.
	self := tree.add(ours)
	was, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	join(t, self)
	t.Cleanup(func() { join(t, back(string(was), self)) })
	o, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	found, err := o.Search([]string{plain, scope, absent, ours, "docker", "", "machine.slice"})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || len(found[plain]) != 1 || found[plain][0].Dir() != a || len(found[scope]) != 1 || found[scope][0].Dir() != b {
		t.Fatalf("found %v", found)
	}
	for _, groups := range found {
		for _, g := range groups {
			if err := g.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	if inA.Wait() == nil || inB.Wait() == nil {
		t.Error("what was found was not killed")
	}
	if err := inC.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("another container: %v", err)
	}
}

// join moves this process into a group.
func join(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		t.Error(err)
	}
}

// back is the directory of the group that this process was in, in the hierarchy
// that dir is in.
func back(members, dir string) string {
	for line := range strings.Lines(strings.TrimSpace(members)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		if strings.HasPrefix(dir, "/sys/fs/cgroup/freezer/") == (controllers == "freezer") {
			top := "/sys/fs/cgroup"
			if controllers == "freezer" {
				top += "/freezer"
			}
			return top + path
		}
	}
	return ""
}

// A runtime that goes on without its engine starts a container after the engine's
// removal. The container is seen dead only once the runtime has ended.
func TestSeeDeadWaitsForTheRuntime(t *testing.T) {
	tree := newGroupTree(t)
	id := strings.Repeat("5f", 32)
	tree.add("docker")
	dir := tree.add("docker/" + id)
	runtime := exec.Command("sh", "-c", `sleep 0.3; sleep 600 </dev/null >/dev/null 2>&1 & echo $! >"$1/cgroup.procs"; echo $!`, "runtime", dir)
	out, err := runtime.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.Start(); err != nil {
		t.Fatal(err)
	}
	o, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan string)
	go func() {
		pid, _ := io.ReadAll(out) // an empty text fails below
		_ = runtime.Wait()        // it ends by itself
		ended <- strings.TrimSpace(string(pid))
	}()
	if left := o.SeeDead(t.Context(), []string{id}); len(left) > 0 {
		t.Fatal(left)
	}
	pid, err := strconv.Atoi(<-ended)
	if err != nil {
		t.Fatal(err)
	}
	if alive := killtest.Processes(t, id); len(alive) > 0 {
		t.Errorf("still alive: %q", alive)
		_ = unix.Kill(pid, unix.SIGKILL) // the test has failed
	}
}
