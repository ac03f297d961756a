package protecttest

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == RoleServer {
		os.Exit(ServerMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// After KillFile, another server can start at once. A process may still listen with its other
// threads after its first thread has ended, so KillFile waits for all of them.
func TestKilledServerIsGone(t *testing.T) {
	pidfile := filepath.Join(t.TempDir(), "pid")
	for range 20 {
		address := FreePort(t)
		s := Start(t, 0, GoServer(address)...)
		AwaitListening(t, address)
		if err := os.WriteFile(pidfile, []byte(strconv.Itoa(s.Pid())), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := KillFile(pidfile); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
