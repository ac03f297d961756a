package labtest

import (
	"context"
	"testing"

	"holdfast/internal/platform/engine"
	"holdfast/test/lab"
)

// Daemon is a private engine of either kind.
type Daemon interface {
	Host() string
	Socket() string
	Pid() int
	CgroupParent() string
	Scratch() string
	Restart(context.Context) error
	StopDaemon() error
	StartDaemon(context.Context) error
	Kill() error
}

var (
	_ Daemon = (*lab.Engine)(nil)
	_ Daemon = (*lab.Containerd)(nil)
)

// Either returns the package's shared Docker engine, or with -on-containerd its
// containerd, and a client for one test.
func Either(t testing.TB) (Daemon, engine.Engine) {
	t.Helper()
	if !OnContainerd() {
		return Engine(t), Docker(t)
	}
	daemon := SharedContainerd(t)
	return daemon, OpenContainerd(t, ContainerdConfig(daemon))
}
