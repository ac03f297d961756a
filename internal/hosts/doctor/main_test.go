package doctor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
	"holdfast/test/vm/vmtest"
)

// Roles of the test binary, in addition to those of the product.
const (
	roleExamine = "examine" // examine for a second, print the report
	roleDrill   = "drill"   // run a drill to its end: its name, a directory
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if role, ok := map[string]func([]string) error{
			probe.RoleAlloc: func(args []string) error { return probe.Alloc(args, os.Stdout) },
			drill.Role:      func(args []string) error { return drill.Work(context.Background(), args) },
			roleExamine:     examineOnce,
			roleDrill:       drillOnce,
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
			fmt.Fprintln(os.Stderr, "remount the control groups:", err) // without it the tests are slower
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
	return probe.Host{Proc: proc.Host, Sys: "/sys", Kmsg: "/dev/kmsg", Groups: groups, Child: []string{"/proc/self/exe", probe.RoleAlloc}}, err
}

func examineOnce([]string) error {
	h, err := hostHere()
	if err != nil {
		return err
	}
	r, err := doctor.Examination{Host: h, For: time.Second}.Run(context.Background())
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// options returns the options of a drill whose processes are this test binary.
func options(dir string) (drill.Options, error) {
	groups, err := cgroup.Find(proc.Host)
	return drill.Options{For: drill.MaxFor, Dir: dir, Worker: []string{"/proc/self/exe", drill.Role}, Groups: groups}, err
}

func drillOnce(args []string) error {
	d, err := drill.Find(args[0])
	if err != nil {
		return err
	}
	o, err := options(args[1])
	if err != nil {
		return err
	}
	o.Ready = func(r drill.Running) { fmt.Println(r.Group) }
	return drill.Run(context.Background(), d, o)
}

// examine runs e on this host, by default for 6 s.
func examine(t *testing.T, e doctor.Examination) doctor.Report {
	t.Helper()
	h, err := hostHere()
	if err != nil {
		t.Fatal(err)
	}
	h.Scratch = t.TempDir()
	if e.For == 0 {
		e.For = 6 * time.Second
	}
	if err := doctor.RaisePriority(); err != nil {
		t.Fatal(err)
	}
	e.Host = h
	r, err := e.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// during runs a drill, and check while the drill is active.
func during(t *testing.T, d drill.Drill, o drill.Options, check func(drill.Running)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan drill.Running, 1), make(chan error, 1)
	o.Ready = func(r drill.Running) { ready <- r }
	var running sync.WaitGroup
	running.Go(func() { ended <- drill.Run(ctx, d, o) })
	select {
	case r := <-ready:
		check(r)
		cancel()
	case err := <-ended:
		t.Fatalf("drill %s: %v", d.Name, err)
	}
	running.Wait()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// find returns the finding of a rule that names the group, nil if there is none.
func find(r doctor.Report, rule, group string) *doctor.Finding {
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Rule == rule && (group == "" || f.Subject != nil && within(f.Subject.Cgroup, group)) {
			return f
		}
	}
	return nil
}

// findContainer returns the finding of a rule that names a container. Other users of this
// machine may run drills, too.
func findContainer(r doctor.Report, rule, container string) *doctor.Finding {
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Rule == rule && f.Subject != nil && f.Subject.Container == container {
			return f
		}
	}
	return nil
}

func within(path, group string) bool {
	return path == group || len(path) > len(group) && path[:len(group)+1] == group+"/"
}

// explain describes what a report has instead of an expected finding.
func explain(r doctor.Report, rule, group string) string {
	s := ""
	for _, f := range r.Findings {
		s += fmt.Sprintf("found %s: %s, %+v\n", f.Rule, f.Title, f.Subject)
	}
	if i := slices.IndexFunc(r.Checked, func(c doctor.Check) bool { return c.Rule == rule }); i >= 0 {
		s += fmt.Sprintf("%+v\n", r.Checked[i])
	}
	for _, f := range r.Facts {
		if f.Subject.IsHost() || within(f.Subject.Cgroup, group) {
			s += fmt.Sprintf("%s %v %+v\n", f.Name, f.Value, f.Subject)
		}
	}
	return s
}

// staticWorker builds the program that does a drill's work in containers.
func staticWorker(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drillworker")
	if err := labtest.Build(t.Context(), "holdfast/internal/hosts/doctor/drill/drillworker", path); err != nil {
		t.Fatal(err)
	}
	return path
}
