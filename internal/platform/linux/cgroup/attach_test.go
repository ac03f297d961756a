package cgroup

import (
	"os"
	"testing"
	"time"

	"holdfast/internal/platform/linux/proc"
)

// Getting ready moves this process nowhere, and ends when it is told to, or by itself.
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
