package guardian_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/sessions/guardian"
	"holdfast/test/poll"
)

// limitFile is a file in place of a memory cgroup's limit. All values have three
// digits, because writing to a file on disk does not truncate it.
func limitFile(t *testing.T, value string) (string, func() string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "memory.limit_in_bytes")
	if err := os.WriteFile(file, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

func restoring(file string, deadline time.Duration) guardian.Plan {
	return guardian.Plan{Name: "a test", Deadline: boottime.Now().Add(deadline), Undo: []guardian.Undo{
		{Kind: guardian.Restore, Limits: []guardian.Limit{{File: file, Low: "100", Old: "900"}}},
	}}
}

// A limit is written back at the deadline, and again when a stalled starter lowers it
// late. It is not written back when another process has set a different limit.
func TestLimitIsRestored(t *testing.T) {
	g := start(t, t.TempDir())
	file, value := limitFile(t, "900")
	other, another := limitFile(t, "500")
	armed, err := arm(g, restoring(file, 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := arm(g, restoring(other, 0)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := os.WriteFile(file, []byte("100"), 0o600); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, "the limit is the old one", func() bool { return value() == "900" })
	}
	if another() != "500" {
		t.Errorf("a limit that another has set became %s", another())
	}
	_ = armed.Disarm() // ErrUndone: the plan was carried out
	if err := os.WriteFile(file, []byte("100"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if value() != "100" {
		t.Error("the guardian goes on after the plan was disarmed")
	}
}

// A starter whose guardian was killed restores the limit. If both were killed,
// Recover does, and until then Guards reports that the limit is a lowered one.
func TestLimitOfTheDead(t *testing.T) {
	dir := t.TempDir()
	g := start(t, dir)
	file, value := limitFile(t, "900")
	armed, err := arm(g, restoring(file, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("100"), 0o600); err != nil {
		t.Fatal(err)
	}
	if on, err := guardian.Guards(dir, file); err != nil || !on {
		t.Errorf("it is not seen to be guarded: %v", err)
	}
	if err := unix.Kill(g.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-armed.Done()
	if value() != "900" {
		t.Errorf("its starter left %s", value())
	}
	if err := os.WriteFile(file, []byte("100"), 0o600); err != nil { // as if the starter had been killed too
		t.Fatal(err)
	}
	poll.Until(t, "the plan is recovered", func() bool {
		n, err := guardian.Recover(dir)
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	if value() != "900" {
		t.Errorf("the next start left %s", value())
	}
	if on, err := guardian.Guards(dir, file); err != nil || on {
		t.Errorf("still guarded: %v", err)
	}
}

// A guardian is root: it writes only to limits of memory cgroups.
func TestNoOtherFileIsWritten(t *testing.T) {
	g := start(t, t.TempDir())
	for _, l := range []guardian.Limit{
		{File: "/etc/passwd", Low: "100", Old: "900"},
		{File: "memory.limit_in_bytes", Low: "100", Old: "900"},
		{File: "/sys/fs/../memory.limit_in_bytes", Low: "100", Old: "900"},
		{File: "/sys/memory.limit_in_bytes", Low: "100", Old: "root::0:0"},
		{File: "/sys/memory.limit_in_bytes", Low: "", Old: "900"},
	} {
		p := guardian.Plan{Deadline: 1, Undo: []guardian.Undo{{Kind: guardian.Restore, Limits: []guardian.Limit{l}}}}
		if _, err := g.Arm(p); err == nil {
			t.Errorf("armed: %+v", l)
		}
	}
	mixed := restoring("/sys/memory.limit_in_bytes", time.Hour)
	mixed.Undo[0].Nets = []vethnet.Config{{}}
	if _, err := g.Arm(mixed); err == nil {
		t.Error("a plan of two kinds is armed")
	}
}
