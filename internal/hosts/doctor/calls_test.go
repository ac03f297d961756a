package doctor_test

import (
	"context"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
)

// A container that only makes system calls is named, together with the calls.
func TestSyscallStorm(t *testing.T) {
	api := labtest.Docker(t)
	id, err := api.Create(t.Context(), engine.Spec{
		Name: "caller", Image: labtest.Busybox, Network: "none", Command: []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Remove(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	if err := api.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	c, err := api.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	labtest.PreferCPU(t, c.Pid)
	var r doctor.Report
	var f *doctor.Finding
	for range 5 { // with concurrent tests the caller has only a part of a CPU
		r = examine(t, doctor.Examination{Engine: api})
		if f = findContainer(r, "syscall-storm", "caller"); f != nil {
			break
		}
	}
	if f == nil {
		t.Fatalf("no syscall-storm by %s:\n%s", id, explain(r, "syscall-storm", ""))
	}
	if f.Subject.Image != labtest.Busybox || !strings.Contains(f.Subject.Command, "dd") {
		t.Errorf("subject %+v", f.Subject)
	}
	evidence := ""
	for _, e := range f.Evidence {
		evidence += e.What + "\n"
	}
	if !strings.Contains(evidence, "read by dd") || !strings.Contains(evidence, "write by dd") {
		t.Errorf("the calls are missing:\n%s", evidence)
	}
	for _, x := range r.Facts {
		if x.Name == fact.Calls && (x.Over <= 0 || x.Over > 10) {
			t.Errorf("calls were counted for %v s, want at most 10 s", x.Over)
		}
	}
}
