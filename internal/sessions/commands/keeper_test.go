package commands

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// silent is a listener without a connection.
type silent struct{ closed chan struct{} }

func (s silent) Accept() (net.Conn, error) { <-s.closed; return nil, net.ErrClosed }
func (s silent) Addr() net.Addr            { return &net.UnixAddr{} }
func (s silent) Close() error              { close(s.closed); return nil }

// A keeper without an agent ends when nothing needs it: without a command after a minute,
// after SIGTERM at once, and with a running command a bounded time after SIGTERM. A
// command keeps it otherwise.
func TestKeeperEnds(t *testing.T) {
	for name, c := range map[string]struct {
		running, told bool
		least, most   time.Duration // until its end
	}{
		"idle":         {false, false, idleLimit, idleLimit + 2*lookAround},
		"told":         {false, true, 0, 2 * lookAround},
		"told, in use": {true, true, leaveLimit, leaveLimit + 2*lookAround},
		"still in use": {true, false, time.Hour - lookAround, time.Hour}, // by the last look while it ran
	} {
		path := filepath.Join(t.TempDir(), socketName)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			k := &keeper{path: path, log: slog.New(slog.DiscardHandler)}
			var last *command
			if c.running {
				last = started(t, &k.table, "alice")
			}
			begin := time.Now()
			if last != nil && !c.told {
				time.AfterFunc(time.Hour-idleLimit, func() { last.endAt(time.Now()) })
			}
			term := make(chan os.Signal, 1)
			if c.told {
				term <- syscall.SIGTERM
			}
			if err := k.serve(silent{make(chan struct{})}, term); err != nil {
				t.Error(name, err)
			}
			if took := time.Since(begin); took < c.least || took > c.most+2*lookAround {
				t.Errorf("%s: it ended after %v", name, took)
			}
		})
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s: its socket is left: %v", name, err)
		}
	}
}
