package vm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/platform/linux/proc"
	"holdfast/test/vm"
	"holdfast/test/vm/vmtest"
)

// TestMain is also the program in the machine.
func TestMain(m *testing.M) {
	if vmtest.Inside() {
		os.Exit(program(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func program(args []string) int {
	switch args[0] {
	case "tell":
		tell(args)
		return 42
	case "panic": // Documentation/admin-guide/sysrq.rst
		if err := os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0); err != nil {
			fmt.Println(err)
		}
	case "hang":
		fmt.Println("begun")
		time.Sleep(time.Hour)
	}
	return 1
}

// tell prints the state of the machine.
func tell(args []string) {
	fmt.Printf("args %q\n", args)
	fmt.Println("env", os.Getenv("ANSWER"))
	for _, f := range []string{"/etc/given", "/proc/modules", "/sys/fs/cgroup/cgroup.subtree_control"} {
		b, err := os.ReadFile(f)
		fmt.Printf("%s: %s %v\n", f, b, err)
	}
	fmt.Fprint(os.Stderr, "on standard error\n\x16bytes as they are\r\x00\n")
}

// run starts a machine with this test program in it.
func run(t *testing.T, ctx context.Context, c vm.Config) (int, error) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short leaves out the virtual machine")
	}
	tests := filepath.Join(t.TempDir(), "tests")
	if err := vm.Build(t.Context(), tests, "test", "-c", "."); err != nil {
		t.Fatal(err)
	}
	c.Files = map[string]string{"/tests": tests, "/etc/given": "initramfs.go"}
	return vm.Run(ctx, c)
}

func TestProgramInMachine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	code, err := run(t, t.Context(), vm.Config{
		Command: []string{"/tests", "tell", "two words"},
		Env:     []string{"ANSWER=sixty"},
		Modules: []string{"nft_queue"}, // needs nf_tables, nfnetlink and libcrc32c
		Output:  &out,
	})
	if err != nil || code != 42 {
		t.Fatalf("exit code %d, %v\n%s", code, err, out.Bytes())
	}
	given, err := os.ReadFile("initramfs.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`args ["tell" "two words"]` + "\n", "env sixty\n", "/etc/given: " + string(given),
		"/proc/modules: nft_queue ", "\nnf_tables ", "cpu", "memory", "pids",
		"on standard error\n\x16bytes as they are\r\x00\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.Bytes())
		}
	}
}

func TestKernelPanics(t *testing.T) {
	t.Parallel()
	_, err := run(t, t.Context(), vm.Config{Command: []string{"/tests", "panic"}})
	if !errors.Is(err, vm.ErrNoExit) || !strings.Contains(fmt.Sprint(err), "Kernel panic") {
		t.Errorf("got %v", err)
	}
}

// If a program hangs, the machine ends with the context, and no process remains.
func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("enough")
	r, w := io.Pipe()
	go func() {
		_, _ = r.Read(make([]byte, 1))
		cancel(enough)
		_, _ = io.Copy(io.Discard, r)
	}()
	_, err := run(t, ctx, vm.Config{Command: []string{"/tests", "hang"}, Output: w})
	if !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	w.Close()
	if q := machines(t); len(q) > 0 {
		t.Errorf("machines left: %v", q)
	}
}

func TestUnknownModule(t *testing.T) {
	t.Parallel()
	_, err := run(t, t.Context(), vm.Config{Command: []string{"/tests"}, Modules: []string{"no_such"}})
	if err == nil || !strings.Contains(err.Error(), "no module no_such") {
		t.Errorf("got %v", err)
	}
}

// machines returns the running machines of this process.
func machines(t *testing.T) []proc.Stat {
	t.Helper()
	pids, err := proc.Host.Pids()
	if err != nil {
		t.Fatal(err)
	}
	var ms []proc.Stat
	for _, pid := range pids {
		s, err := proc.Host.Stat(pid)
		if err == nil && s.PPid == os.Getpid() && strings.HasPrefix(s.Comm, "qemu") {
			ms = append(ms, s)
		}
	}
	return ms
}
