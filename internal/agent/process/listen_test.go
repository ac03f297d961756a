package process

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
)

func TestOnlyRootMayUseTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "s")
	l, err := ListenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestSocketOfADeadAgentIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ListenSocket(path); err == nil || !strings.Contains(err.Error(), "another agent") || holdfast.HintOf(err) == "" {
		t.Errorf("while one listens: %v", err)
	}
	old.SetUnlinkOnClose(false) // as when it was killed
	old.Close()
	l, err := ListenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestFileAtTheSocketIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenSocket(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}
