// Package vmtest runs a package's tests in a machine of package vm, either all tests:
//
//	func TestMain(m *testing.M) { os.Exit(vmtest.Main(m, vm.Config{})) }
//
// or some tests, which also run on the host:
//
//	func TestOnPureV2(t *testing.T) { vmtest.Run(t, ".", vm.Config{}) }
//
// In the machine a test is root. The machine has only cgroup v2, and neither the source tree
// nor testdata. The race detector does not run there, because it needs a C library. -short
// skips the machine.
package vmtest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/test/vm"
	"holdfast/test/vm/guest"
)

// payload is the path of the test program in the machine.
const payload = "/vm/tests"

// timeout ends hanging tests in the machine and prints their stacks.
const timeout = "-test.timeout=5m"

// Inside reports whether this process runs in a machine.
func Inside() bool { return slices.Contains(os.Environ(), guest.Marker) }

// Fetch downloads the kernel if it is missing. The TestMain of a package whose tests run in
// a lab calls it before it enters the lab, which has no network. Fetch prints an error, and
// the tests that need the machine fail.
func Fetch() {
	flag.Parse()
	if testing.Short() {
		return
	}
	if err := vm.Fetch(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
	}
}

// Main runs all tests of a package in a machine, with the flags of this test program, and
// returns the exit code. c adds files and modules.
func Main(m *testing.M, c vm.Config) int {
	if Inside() {
		return m.Run()
	}
	flag.Parse()
	if testing.Short() {
		fmt.Println("-short leaves out these tests: they run in a virtual machine")
		return 0
	}
	c.Output = os.Stdout
	code, err := run(context.Background(), passedOn(), c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return code
}

// Run runs the package's tests that match the expression (-run of go test; "." is all) in a
// machine, without the calling test. The calling test fails with their output if one fails
// or none passes.
func Run(t *testing.T, expression string, c vm.Config) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short leaves out the virtual machine")
	}
	var output bytes.Buffer
	c.Output = &output
	code, err := run(t.Context(), []string{"-test.v", "-test.run=" + expression, "-test.skip=^" + t.Name() + "$"}, c)
	if err != nil {
		t.Fatalf("%v\n%s", err, output.Bytes())
	}
	if code != 0 || !bytes.Contains(output.Bytes(), []byte("--- PASS")) {
		t.Fatalf("exit code %d in the machine:\n%s", code, output.Bytes())
	}
	t.Logf("in the machine:\n%s", output.Bytes())
}

// run builds the tests of the package in the working directory, which go test sets, and runs
// them in a machine.
func run(ctx context.Context, flags []string, c vm.Config) (int, error) {
	dir, err := os.MkdirTemp("", "vmtest-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "tests")
	if err := vm.Build(ctx, program, "test", "-c", "."); err != nil {
		return 0, err
	}
	c.Files = maps.Clone(c.Files)
	if c.Files == nil {
		c.Files = map[string]string{}
	}
	c.Files[payload] = program
	c.Command = append([]string{payload, timeout}, flags...)
	c.Env = append([]string{"PATH=/bin", "HOME=/tmp"}, c.Env...)
	return vm.Run(ctx, c)
}

// passedOn returns the flags of this program that have the same meaning in the machine:
// neither flags that name files nor those of the race detector.
func passedOn() []string {
	wanted := []string{"run", "skip", "v", "count", "failfast", "parallel", "shuffle", "list", "bench", "benchtime", "fullpath"}
	var flags []string
	flag.Visit(func(f *flag.Flag) {
		if name, ok := strings.CutPrefix(f.Name, "test."); ok && slices.Contains(wanted, name) {
			flags = append(flags, "-"+f.Name+"="+f.Value.String())
		}
	})
	return flags
}
