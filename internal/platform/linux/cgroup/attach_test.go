package cgroup

import (
	"os"
	"testing"
	"time"

	"holdfast/internal/platform/linux/proc"
)

// ReadyAttach does not move this process, and ends when done is closed or at its
// limit.
func TestReadyAttachMovesNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("it needs root")
	}
	before, err := proc.Host.Cgroup(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := ReadyAttach(nil, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	close(done)
	if err := ReadyAttach(done, time.Hour); err != nil {
		t.Fatal(err)
	}
	after, err := proc.Host.Cgroup(os.Getpid())
	if err != nil || string(after) != string(before) {
		t.Errorf("this process was in\n%sand is in\n%s%v", before, after, err)
	}
}
