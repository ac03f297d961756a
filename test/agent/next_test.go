package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"holdfast/internal/agent/handoff"
)

// nextEnv is the environment variable that makes this test binary a faulty next agent. Its
// value is the fault.
const nextEnv = "HOLDFAST_TEST_NEXT"

// installNext installs such an agent.
func (h *host) installNext(act string) {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	h.install(fmt.Appendf(nil, "#!/bin/sh\n%s=%s HF_NODE=%s HF_DIR=%s HF_SOCKET=%s exec %s \"$@\"\n", nextEnv, act, h.node, h.dir, h.socket, self))
}

// playNext runs the faulty agent. It takes its turn like a correct one.
func playNext(act string) int {
	turn, err := handoff.Inherit()
	if err != nil || turn == nil {
		fmt.Fprintln(os.Stderr, "inherit:", err)
		return 1
	}
	dir := os.Getenv("HF_DIR")
	_, _, err = turn.Take(context.Background(), "v0", handoff.Home{
		Node: os.Getenv("HF_NODE"), DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), Socket: os.Getenv("HF_SOCKET"),
	}, handoff.NewConnections(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Fprintln(os.Stderr, "take:", err)
		return 1
	}
	switch act {
	case "hang":
		time.Sleep(time.Hour)
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "crash-up":
		turn.Say(handoff.Held)
		turn.Say(handoff.Up)
		time.Sleep(100 * time.Millisecond)
	}
	return 4
}
