package bpf_test

import (
	"bufio"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/bpf"
)

// pair returns both ends of a TCP connection, and the descriptor of the server's end.
func pair(t *testing.T) (client, server net.Conn, fd int) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp4", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	raw, err := server.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(f uintptr) { fd = int(f) }); err != nil {
		t.Fatal(err)
	}
	return client, server, fd
}

// A closed gate drops a request and lets the rest of another one pass. When no process
// closes it again, the request comes through by itself.
func TestGate(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it loads a BPF program")
	}
	g, err := bpf.NewGate([][4]byte{[4]byte([]byte("GET "))})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	client, server, fd := pair(t)
	cookie, err := g.Attach(fd)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(server)
	say := func(text string) {
		t.Helper()
		if _, err := client.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	hears := func(want string) {
		t.Helper()
		_ = server.SetReadDeadline(time.Now().Add(time.Minute))
		if got, err := r.ReadString('\n'); err != nil || got != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	say("GET 1\n")
	hears("GET 1\n")
	state := func() bpf.GateState {
		s, err := g.State(cookie)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := state(); s.Data != 1 || s.Answered() {
		t.Errorf("a request without an answer: %+v", s)
	}
	if _, err := server.Write([]byte("answer\n")); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(client).ReadString('\n'); err != nil || got != "answer\n" {
		t.Fatal(got, err)
	}
	for end := time.Now().Add(time.Minute); !state().Answered(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("an answer is not seen: %+v", state())
		}
	}
	const limit = time.Second
	began := time.Now()
	if err := g.Shut(limit); err != nil {
		t.Fatal(err)
	}
	say("rest of a body\n")
	hears("rest of a body\n")
	say("GET 2\n")
	say("its body\n")
	for end := time.Now().Add(time.Minute); state().Dropped < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a request is not dropped")
		}
	}
	if s := state(); s.Data != 2 {
		t.Errorf("what follows a request is not dropped: %+v", s)
	}
	if n, err := unix.IoctlGetInt(fd, unix.TIOCINQ); err != nil || n != 0 {
		t.Errorf("%d bytes came through, %v", n, err)
	}
	hears("GET 2\n")
	if took := time.Since(began); took < limit {
		t.Errorf("the gate opened after %v, before %v", took, limit)
	}
	hears("its body\n")
	if err := g.Detach(fd, cookie); err != nil {
		t.Fatal(err)
	}
	if err := g.Shut(time.Minute); err != nil {
		t.Fatal(err)
	}
	say("GET 3\n")
	hears("GET 3\n")
}
