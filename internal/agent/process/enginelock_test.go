package process

import (
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/platform/engine"
)

func TestLockEngine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "engines")
	docker := engine.Info{Name: "docker", DataRoot: "/var/lib/docker", Socket: "/run/docker.sock"}
	first, err := LockEngine(dir, docker, "n1")
	if err != nil {
		t.Fatal(err)
	}
	linked, moved := docker, docker
	linked.Socket, moved.DataRoot = "/var/run/docker.sock", "/srv/docker"
	if _, err := LockEngine(dir, linked, "n1"); err == nil || !strings.Contains(err.Error(), "another agent of node n1") || holdfast.HintOf(err) == "" {
		t.Errorf("the same engine by another path: %v", err)
	}
	for _, other := range []struct {
		info engine.Info
		node holdfast.NodeID
	}{{docker, "n2"}, {moved, "n1"}, {docker, holdfast.NodeID(strings.Repeat("n", 253))}} {
		l, err := LockEngine(dir, other.info, other.node)
		if err != nil {
			t.Errorf("%s at %s: %v", other.node, other.info.DataRoot, err)
			continue
		}
		l.Close()
	}
	first.Close()
	again, err := LockEngine(dir, docker, "n1")
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
