package protect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// roleUDP is a UDP server that answers each datagram with its pid.
const roleUDP = "udp"

// udpMain binds with SO_REUSEPORT if there is a file for its pid, which it then writes.
func udpMain(address string, pidfile ...string) int {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if len(pidfile) == 0 {
			return nil
		}
		e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, e)
	}}
	c, err := lc.ListenPacket(context.Background(), "udp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		return 1
	}
	for _, f := range pidfile {
		if err := os.WriteFile(f, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			return 1
		}
	}
	b := make([]byte, 2048)
	for {
		_, from, err := c.ReadFrom(b)
		if err != nil {
			return 1
		}
		_, _ = c.WriteTo(fmt.Appendf(nil, "%d", os.Getpid()), from)
	}
}

func udpServer(address string, more ...string) []string {
	return append([]string{"/proc/self/exe", roleUDP, address}, more...)
}

// freeUDP returns an address of loopback that no UDP socket has. A client that asks whether the
// server answers cannot take the port before the server (see protecttest.ListenBelow).
func freeUDP(t *testing.T, host string) string {
	t.Helper()
	var c net.PacketConn
	protecttest.ListenBelow(t, host, func(address string) (err error) {
		c, err = net.ListenPacket("udp", address)
		return err
	})
	defer c.Close()
	return c.LocalAddr().String()
}

// askUDP sends one datagram and returns the pid that answers.
func askUDP(c net.Conn, limit time.Duration) (pid int, err error) {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return 0, err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return 0, err
	}
	b := make([]byte, 64)
	n, err := c.Read(b)
	if err == nil {
		_, err = fmt.Sscan(string(b[:n]), &pid)
	}
	return pid, err
}

func dialUDP(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func awaitUDP(t *testing.T, address string) {
	t.Helper()
	poll.Until(t, "a UDP server answers", func() bool {
		c, err := net.Dial("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = askUDP(c, time.Second)
		return err == nil
	})
}

func udpOptions(t *testing.T, command []string, address string) protect.Options {
	t.Helper()
	o := options(t, protect.Auto, command, address)
	o.UDP, o.UDPFor, o.Drain = protect.AutoFlows, protecttest.Patience, time.Second
	return o
}

// udpLoad sends datagrams, each from another address, until stop is called, which returns how
// many were answered and the errors of the others.
func udpLoad(address string) (stop func() (answered int, failed []error)) {
	type result struct {
		n      int
		failed []error
	}
	end, all := make(chan struct{}), make(chan result)
	go func() {
		var r result
		results := make(chan error, 1<<16)
		sent := 0
		for open := true; open; sent++ {
			go func() {
				c, err := net.Dial("udp", address)
				if err == nil {
					_, err = askUDP(c, protecttest.Patience/2)
					c.Close()
				}
				results <- err
			}()
			select {
			case <-end:
				open = false
			case <-time.After(5 * time.Millisecond):
			}
		}
		for range sent {
			if err := <-results; err != nil {
				r.failed = append(r.failed, err)
			} else {
				r.n++
			}
		}
		all <- r
	}()
	return func() (int, []error) { close(end); r := <-all; return r.n, r.failed }
}

// A UDP server is killed and started while clients send all the time. Each datagram is answered.
func TestHardRestartOfUDP(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	for _, host := range []string{"127.0.0.1", "::1"} {
		address := freeUDP(t, host)
		pidfile := protecttest.StartFile(t, 0, udpServer(address)...)
		awaitUDP(t, address)
		stop := udpLoad(address)
		held := 0
		for range 2 {
			r, err := protect.Run(t.Context(), udpOptions(t, protecttest.Restart(pidfile, 0, 100*time.Millisecond, udpServer(address)...), address))
			if err != nil {
				t.Fatal(err)
			}
			d := r.Released.Datagrams
			if r.Backend != protect.Steer || d == nil || d.Lost > 0 || d.Flows != protect.ByAddress || d.Held > 0 && d.Waits == nil {
				t.Errorf("the report is %+v, %+v", r.Released, d)
			} else {
				held += d.Held
			}
		}
		n, failed := stop()
		if held == 0 || n == 0 || len(failed) > 0 {
			t.Errorf("%s: %d datagrams were held, %d answered, %d not: %v", host, held, n, len(failed), errors.Join(failed...))
		}
	}
	protecttest.NothingLeft(t, before)
}

// A new server binds the port beside the old one. Known flows stay with the old one until that
// ends, and new flows go to the new one only. Then nothing is left.
func TestOverlapOfUDP(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	address := freeUDP(t, "127.0.0.1")
	old := protecttest.Start(t, 0, udpServer(address, filepath.Join(t.TempDir(), "pid"))...)
	awaitUDP(t, address)
	known := dialUDP(t, address)
	end, asked := make(chan struct{}), make(chan error)
	go func() { // so that it is seen before the hold
		for {
			select {
			case <-end:
				asked <- nil
				return
			default:
				if pid, err := askUDP(known, protecttest.Patience); err != nil || pid != old.Pid() {
					asked <- fmt.Errorf("a known flow was answered by %d, %w", pid, err)
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	pidfile := filepath.Join(t.TempDir(), "pid")
	start := fmt.Sprintf("setsid /proc/%[1]d/exe %[2]s %[3]s %[4]s & until [ -s %[4]s ]; do sleep 0.01; done", os.Getpid(), roleUDP, address, pidfile)
	o := udpOptions(t, []string{"sh", "-c", start}, address)
	o.Overlap = true
	r, err := protect.Run(t.Context(), o)
	t.Cleanup(func() { _ = protecttest.KillFile(pidfile) })
	if err != nil || r.Released.Datagrams == nil || !r.Released.Datagrams.Stays {
		t.Fatalf("the report is %+v, %v", r.Released, err)
	}
	for i := range 50 {
		if pid, err := askUDP(dialUDP(t, address), protecttest.Patience); err != nil || pid == old.Pid() {
			t.Fatalf("new flow %d was answered by %d (the old server is %d), %v", i, pid, old.Pid(), err)
		}
	}
	close(end)
	if err := <-asked; err != nil {
		t.Error(err)
	}
	old.Kill()
	if pid, err := askUDP(known, protecttest.Patience); err != nil || pid == old.Pid() {
		t.Errorf("after the old server's end its flow was answered by %d, %v", pid, err)
	}
	awaitNoHelper(t, "the old server's end")
	protecttest.NothingLeft(t, before)
}

// At each step of a protect the keeper, the protect or both are killed. Then nothing is left in
// the kernel, and a datagram reaches the server that runs.
func TestKilledWithUDP(t *testing.T) {
	needsRoot(t)
	for i, step := range []string{"hold", "drain", "start", "command"} {
		for j, do := range []string{"kill-protect", "kill-keeper", "kill-all"} {
			if !labtest.Long() && i%3 != j {
				continue
			}
			t.Run(step+"/"+do, func(t *testing.T) {
				before := protecttest.Look(t)
				address := freeUDP(t, "127.0.0.1")
				pidfile := protecttest.StartFile(t, 0, udpServer(address)...)
				awaitUDP(t, address)
				arg, err := json.Marshal(order{
					Addresses: []string{address}, LockDir: t.TempDir(), At: step, Do: do, UDP: protect.AutoFlows,
					Command: protecttest.Restart(pidfile, 0, 50*time.Millisecond, udpServer(address)...),
				})
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command("/proc/self/exe", roleProtect, string(arg))
				cmd.Stderr = os.Stderr
				_ = cmd.Run() // how it ends is part of the case
				awaitNoHelper(t, do)
				protecttest.NothingLeft(t, before)
				awaitUDP(t, address)
			})
		}
	}
}
