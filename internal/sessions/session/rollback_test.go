package session

import (
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/kill/killtest"
	"holdfast/test/memstore"
)

// An engine that was restarted within a start may not know that the container runs. The
// container is seen dead before the session boots again.
func TestStartThatGoesOnWithoutItsEngine(t *testing.T) {
	n, e := fakeNode(t, setup{id: "n1", store: memstore.New(1000)})
	e.set(func() { e.losing = true })
	n.serve(t, "alice")
	if starts := e.done("start"); len(starts) != 2 || e.lost == nil {
		t.Fatalf("starts: %q", starts)
	}
	if !e.lost.dead() {
		t.Error("the process of the interrupted start runs")
		_ = unix.Kill(e.lost.Pid, unix.SIGKILL)
	}
	if wrong := e.wrong(); len(wrong) > 0 {
		t.Error(wrong)
	}
	if err := killtest.Remove(e.lost.ID); err != nil {
		t.Error(err)
	}
}
