package cure_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/agent/cureguard"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/pagecache"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
	"holdfast/test/vm/vmtest"
)

// Roles of the test binary, in addition to those of the product.
const (
	roleGuardian = "guardian"
	roleSqueeze  = "squeeze" // a cure that kills or stops itself at a step: an order
	roleReader   = "reader"  // read a file in a group and stay: the group's directory, the file
	roleWriter   = "writer"  // write a part of a file in a group: the group's directory, the file, offset, length
	roleSelf     = "self"    // empty its own group: the group's directory
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if role, ok := map[string]func([]string) error{
			drill.Role:  func(args []string) error { return drill.Work(context.Background(), args) },
			roleSqueeze: squeezer,
			roleReader:  reader,
			roleWriter:  writer,
			roleSelf:    emptySelf,
			roleGuardian: func(args []string) error {
				syscall.Exit(guardianMain(args[0]))
				return nil
			},
		}[os.Args[1]]; ok {
			code := 0
			if err := role(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, "error:", err)
				code = 1
			}
			syscall.Exit(code) // os.Exit takes a second under -race
		}
	}
	if vmtest.Inside() {
		// With favordynmods, moving a process between groups does not wait for every CPU
		// (cgroups(7)).
		if err := unix.Mount("", "/sys/fs/cgroup", "", unix.MS_REMOUNT, "favordynmods"); err != nil {
			fmt.Fprintln(os.Stderr, "remount the control groups:", err) // the tests are slower without it
		}
		if err := vmtest.MountDisk(); err != nil {
			fmt.Fprintln(os.Stderr, "mount a disk:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	vmtest.Fetch()
	os.Exit(labtest.MainOnDisk(m))
}

// hostHere describes this host.
func hostHere() (probe.Host, error) {
	groups, err := cgroup.Find(proc.Host)
	return probe.Host{Proc: proc.Host, Sys: "/sys", Groups: groups}, err
}

// envHere describes this host, with a guardian that writes its plans to dir.
func envHere(dir string, log *slog.Logger) (cure.Env, *cureguard.Guard, error) {
	h, err := hostHere()
	g := cureguard.New([]string{"/proc/self/exe", roleGuardian}, dir, log)
	return cure.Env{Host: h, Guard: g.Cures(), Journal: cure.Journal{Path: filepath.Join(dir, cure.FileName)}}, g, err
}

// env is envHere for one test.
func env(t *testing.T) cure.Env {
	t.Helper()
	e, g, err := envHere(t.TempDir(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// apply carries a cure out.
func apply(t *testing.T, e cure.Env, c cure.Cure) cure.Report {
	t.Helper()
	r, err := c.Run(t.Context(), e, cure.Options{Apply: true, For: 2 * time.Minute})
	if err != nil {
		t.Fatalf("%v, %+v", err, r)
	}
	t.Logf("%+v", r)
	return r
}

// figure returns one of a report's figures.
func figure(t *testing.T, r cure.Report, what string) cure.Figure {
	t.Helper()
	for _, f := range r.Figures {
		if strings.Contains(f.What, what) {
			return f
		}
	}
	t.Fatalf("no figure %q: %+v", what, r)
	return cure.Figure{}
}

// onDisk returns a directory on a disk; t.TempDir may not be on one.
func onDisk(t *testing.T) string {
	t.Helper()
	base := vmtest.Disk
	if !vmtest.Inside() {
		base = labtest.Engine(t).Scratch()
	}
	dir := filepath.Join(base, strings.ReplaceAll(t.Name(), "/", "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// during runs a drill, and check while the drill is active.
func during(t *testing.T, name string, size int, check func(drill.Running)) {
	t.Helper()
	d, err := drill.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	h, err := hostHere()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan drill.Running, 1), make(chan error, 1)
	o := drill.Options{For: 5 * time.Minute, Size: size, Dir: onDisk(t), Worker: []string{"/proc/self/exe", drill.Role}, Groups: h.Groups,
		Ready: func(r drill.Running) { ready <- r }}
	var running sync.WaitGroup
	running.Go(func() { ended <- drill.Run(ctx, d, o) })
	defer func() {
		cancel()
		running.Wait()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	select {
	case r := <-ready:
		check(r)
	case err := <-ended:
		ended <- nil
		t.Fatalf("drill %s: %v", name, err)
	}
}

// memory returns the group of a path in the hierarchy with the memory controller.
func memory(t *testing.T, path string) cgroup.Group {
	t.Helper()
	h, err := hostHere()
	if err != nil {
		t.Fatal(err)
	}
	m, ok := h.Groups.Memory()
	if !ok {
		t.Fatal("no memory controller")
	}
	return m.Group(path)
}

// newGroup creates a group for one test.
func newGroup(t *testing.T, path string) cgroup.Group {
	t.Helper()
	g := memory(t, path)
	if err := os.Mkdir(g.Dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		poll.Until(t, "the group is removed", func() bool {
			err := unix.Rmdir(g.Dir())
			return err == nil || errors.Is(err, unix.ENOENT) // it was removed with its drill
		})
	})
	return g
}

// livePages starts a process in the group that reads a file of the given MiB. It returns
// a func that counts the file's bytes that are in memory.
func livePages(t *testing.T, g cgroup.Group, mib int) (resident func() int64) {
	t.Helper()
	name := filepath.Join(onDisk(t), "live-"+filepath.Base(g.Path))
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(); os.Remove(name) })
	block := make([]byte, 1<<20)
	for range mib {
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	// The file is dropped from the cache, so that its pages are charged to the reader.
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	start(t, roleReader, g.Dir(), name)
	return func() int64 {
		n, err := pagecache.Resident(f)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// start starts a role and returns when it prints a line.
func start(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
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
		_ = cmd.Wait() // it is killed
	})
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return cmd
}

func join(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}

func reader(args []string) error {
	if err := join(args[0]); err != nil {
		return err
	}
	for range 2 { // twice, so that the pages count as used
		if _, err := os.ReadFile(args[1]); err != nil {
			return err
		}
	}
	fmt.Println("read")
	for {
		time.Sleep(time.Hour)
	}
}

func writer(args []string) error {
	if err := join(args[0]); err != nil {
		return err
	}
	from, err1 := strconv.ParseInt(args[2], 10, 64)
	n, err2 := strconv.ParseInt(args[3], 10, 64)
	f, err := os.OpenFile(args[1], os.O_WRONLY, 0)
	if err = errors.Join(err, err1, err2); err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, n), from)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		fmt.Println("written")
	}
	return err
}

func emptySelf(args []string) error {
	if err := join(args[0]); err != nil {
		return err
	}
	h, err := hostHere()
	if err != nil {
		return err
	}
	r, err := cure.Self().Run(context.Background(), cure.Env{Host: h}, cure.Options{Apply: true})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func number(t *testing.T, file string) int64 {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
