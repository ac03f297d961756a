package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
)

// patience bounds waits for events that always occur.
const patience = 10 * time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) > 3 {
		if role, ok := map[string]func(string) error{roleDeny: deny, roleHide: hide, roleDrop: drop}[os.Args[1]]; ok {
			err := role(os.Args[2])
			if err == nil {
				err = unix.Exec(os.Args[3], os.Args[3:], os.Environ())
			}
			fmt.Fprintln(os.Stderr, "error:", os.Args[1], err)
			os.Exit(99)
		}
	}
	code := labtest.Main(m)
	if binary.dir != "" {
		os.RemoveAll(binary.dir)
	}
	os.Exit(code)
}

// binary is the program under test. The first test that needs it builds it.
var binary struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func holdfastBinary(t *testing.T) string {
	t.Helper()
	labtest.Engine(t)
	binary.once.Do(func() {
		if binary.dir, binary.err = os.MkdirTemp("", "holdfast-bin-"); binary.err != nil {
			return
		}
		if binary.err = os.Chmod(binary.dir, 0o755); binary.err != nil { // user `nobody` also runs it
			return
		}
		binary.path = filepath.Join(binary.dir, "holdfast")
		binary.err = errors.Join(
			labtest.Build(context.Background(), "holdfast/cmd/holdfast", binary.path),
			labtest.Build(context.Background(), "holdfast/cmd/holdfast-bench", binary.path+"-bench"),
		)
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}

// command returns holdfast with these arguments, started through a role of this test
// program if one is given. host is the engine's address; "" is the lab's engine.
func command(t *testing.T, host string, role []string, args ...string) *exec.Cmd {
	t.Helper()
	if host == "" {
		host = labtest.Engine(t).Host()
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "holdfast.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "engine: {host: %q}\n", host), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{holdfastBinary(t)}, args...)
	if role != nil {
		argv = append(append([]string{"/proc/self/exe"}, role...), argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "HOLDFAST_CONFIG="+config)
	cmd.Dir = "/"
	return cmd
}

// done is the result of a command.
type done struct {
	code int
	out  string
	errs string
}

// finish runs a command to its end.
func finish(t *testing.T, cmd *exec.Cmd) done {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return done{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// report parses the report, which must exist, with or without findings.
func report(t *testing.T, cmd *exec.Cmd) doctor.Report {
	t.Helper()
	d := finish(t, cmd)
	if d.code != 0 && d.code != 9 {
		t.Fatalf("exit code %d: %s", d.code, d.errs)
	}
	var r doctor.Report
	if err := json.Unmarshal([]byte(d.out), &r); err != nil {
		t.Fatalf("%v: %.300s", err, d.out)
	}
	if len(r.Checked) < 20 {
		t.Errorf("only %d checks", len(r.Checked))
	}
	return r
}

func verdict(r doctor.Report, rule string) doctor.Check {
	for _, c := range r.Checked {
		if c.Rule == rule {
			return c
		}
	}
	return doctor.Check{}
}

// blind asserts that the rules were not judged, that the reason of each contains the
// words, and that they have no findings.
func blind(t *testing.T, r doctor.Report, words string, rules ...string) {
	t.Helper()
	for _, name := range rules {
		if c := verdict(r, name); c.Verdict != doctor.NotJudged || !strings.Contains(c.Why, words) {
			t.Errorf("%+v, want %q", c, words)
		}
	}
	for _, f := range r.Findings {
		if slices.Contains(rules, f.Rule) {
			t.Errorf("a finding of a rule that was not judged: %+v", f)
		}
	}
}

// judged asserts that the rules were judged.
func judged(t *testing.T, r doctor.Report, rules ...string) {
	t.Helper()
	for _, name := range rules {
		if c := verdict(r, name); c.Verdict != doctor.Fine && c.Verdict != doctor.Found {
			t.Errorf("%+v", c)
		}
	}
}

// noGroups asserts that no control group of the names exists. Other users of this machine
// may run drills.
func noGroups(t *testing.T, names ...string) {
	t.Helper()
	if left := groups(t, func(name string) bool { return slices.Contains(names, name) }); len(left) > 0 {
		t.Errorf("control groups left: %+v", left)
	}
}

// groups returns the control groups whose names match, in every hierarchy.
func groups(t *testing.T, match func(name string) bool) []cgroup.Group {
	t.Helper()
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	found, err := mounts.Search(match)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
