package probe

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/tracepoint"
)

// The path through a program is named, for a limited number of programs, while they run.
func TestUserPath(t *testing.T) {
	pcs := make([]uintptr, 16)
	place := tracepoint.Place{Pid: os.Getpid()}
	for _, pc := range pcs[:runtime.Callers(1, pcs)] {
		place.User = append(place.User, uint64(pc))
	}
	r := &resolver{h: Host{Proc: proc.Host}, users: 2}
	got := r.user(place, os.Getpid())
	at := slices.IndexFunc(got, func(f string) bool { return strings.HasSuffix(f, ".TestUserPath") })
	if at < 0 || at+1 == len(got) || !strings.HasSuffix(got[at+1], "testing.tRunner") {
		t.Errorf("the path is %q", got)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if got := r.user(tracepoint.Place{Pid: gone.Process.Pid, User: place.User}, gone.Process.Pid); got != nil {
		t.Errorf("path of an exited process: %q", got)
	}
	if got := r.user(place, os.Getpid()); got != nil {
		t.Errorf("path beyond the bound on programs: %q", got)
	}
	if got := (&resolver{h: Host{Proc: proc.Host}, users: 2}).user(place, 0); got != nil {
		t.Errorf("path of a process that is not in this procfs: %q", got)
	}
}
