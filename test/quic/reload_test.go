package quic_test

import (
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
)

var (
	reloads    = flag.Int("reloads", 2, "reloads of the server")
	handshakes = flag.Int("handshakes", 200, "handshakes, at least")
	pause      = flag.Duration("pause", 100*time.Millisecond, "pause between two reloads")
	limit      = flag.Duration("for", 5*time.Minute, "end after this time with what there is")
	drain      = flag.Duration("drain", 5*time.Second, "protect's --drain")
	without    = flag.Bool("without", false, "reload without protect, to compare")
)

// A server of QUIC is reloaded again and again while clients connect: a new process binds the
// port beside the old one, which ends when its connections have. No handshake fails, and no
// connection of the old process, also when the client's address changes.
func TestReloads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("it needs root")
	}
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.LocalAddr()
	free.Close()
	pid, err := start(at.String())
	if err != nil {
		t.Fatal(err)
	}
	pidfile := filepath.Join(t.TempDir(), "pid")
	if err := os.WriteFile(pidfile, []byte(strconv.Itoa(pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if b, err := os.ReadFile(pidfile); err == nil {
			if pid, err := strconv.Atoi(string(b)); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
	l := newLoad(at, echoes())
	for range 4 {
		l.run(l.short)
		l.run(l.long)
	}
	command := []string{"/proc/self/exe", roleReload, pidfile, at.String()}
	dir, held, lost, stays, count := t.TempDir(), 0, 0, 0, 0
	flows := protect.AutoFlows // once: a server that is slow for load alone is not recognised
	for end := time.Now().Add(*limit); time.Now().Before(end) && (count < *reloads || int(l.done.Load()) < *handshakes); count++ {
		if *without {
			if err := reload(pidfile, at.String()); err != nil {
				t.Fatal(err)
			}
		} else {
			d := protectDatagrams(t, dir, at, flows, true, command)
			if d == nil {
				break // with the figures until now
			}
			if d.Flows != protect.ByConnection {
				t.Fatalf("QUIC was not recognised: %+v", d)
			}
			flows = protect.ByConnection
			held, lost = held+d.Held, lost+d.Lost
			if d.Stays {
				stays++
			}
		}
		l.reload()
		time.Sleep(*pause)
	}
	l.end()
	t.Logf("%d reloads, %d handshakes, %d failed; %d connections lived through a reload, and %d changes of their addresses; %d datagrams held, %d lost; an old server stayed %d times",
		count, l.done.Load(), len(l.failed), l.spanned.Load(), l.migrated.Load(), held, lost, stays)
	l.report(t)
	if l.migrated.Load() == 0 {
		t.Error("no address changed")
	}
}

// protectDatagrams runs a command under protect. nil: the test has failed.
func protectDatagrams(t *testing.T, lockDir string, at net.Addr, flows protect.Flows, overlap bool, command []string) *protect.DatagramStats {
	t.Helper()
	r, err := protect.Run(t.Context(), protect.Options{
		Spec: protect.Spec{
			Addresses: []protect.Address{{Port: uint16(at.(*net.UDPAddr).Port)}}, UDP: flows,
			UDPFor: time.Minute, Overlap: overlap, Limit: time.Minute,
		},
		Drain: *drain, Wait: time.Minute, Command: command, Stdout: os.Stderr, Stderr: os.Stderr,
		Keeper: []string{"/proc/self/exe", roleKeeper}, LockDir: lockDir, Log: quiet(),
	})
	if err == nil && r.Released.Datagrams == nil {
		err = errors.New("no datagrams were held")
	}
	if err != nil {
		t.Error(err)
		return nil
	}
	return r.Released.Datagrams
}
