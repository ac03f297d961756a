package handoff_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/agent/handoff"
	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/platform/linux/listenfd"
	"holdfast/test/serve"
)

// answerConnections writes each connection's state to it, and ends.
func answerConnections(conns *handoff.Connections) int {
	select {
	case <-conns.Arrived():
	case <-time.After(time.Minute):
		fmt.Fprintln(os.Stderr, "no connections arrive")
		return 1
	}
	for _, c := range conns.Take() {
		var text string
		_, err := fmt.Sscanf(string(c.State), `{"text":%q}`, &text)
		for _, fd := range c.FDs {
			tcp, open := connfd.Open(fd)
			if err != nil || open != nil {
				fmt.Fprintln(os.Stderr, err, open)
				return 1
			}
			fmt.Fprint(tcp, text)
			tcp.Close()
		}
	}
	return 0
}

// accepted returns a client's end of a TCP connection, and the descriptor of the other end.
func accepted(t *testing.T) (client net.Conn, fd int) {
	t.Helper()
	dialed, server := serve.Pair(t)
	dialed.SetDeadline(time.Now().Add(time.Minute))
	fd, err := connfd.Take(server)
	if err != nil {
		t.Fatal(err)
	}
	return dialed, fd
}

// TestConnectionsArePassed: open connections reach the next agent with their states, which may
// be longer than a message, and more of them than one message carries.
func TestConnectionsArePassed(t *testing.T) {
	var log bytes.Buffer
	n, err := start(t, "connections", &log)
	if err != nil {
		t.Fatal(err, &log)
	}
	if !n.Hello().Connections {
		t.Error("the next agent takes no connections")
	}
	s, _ := socket(t)
	if err := n.Go([]*listenfd.Socket{s}, nil); err != nil {
		t.Fatal(err)
	}
	await(t, n, handoff.Held)
	await(t, n, handoff.Up)
	var conns []connfd.Conn
	var clients []net.Conn
	var texts []string
	for i := range 3 * listenfd.Most {
		client, fd := accepted(t)
		text := strings.Repeat("x", 1+i*5000)
		conns = append(conns, connfd.Conn{FDs: []int{fd}, State: fmt.Appendf(nil, `{"text":%q}`, text)})
		clients, texts = append(clients, client), append(texts, text)
	}
	pair, fd1 := accepted(t)
	other, fd2 := accepted(t)
	conns = append(conns, connfd.Conn{FDs: []int{fd1, fd2}, State: []byte(`{"text":"two"}`)})
	clients, texts = append(clients, pair, other), append(texts, "two", "two")
	if err := n.Pass(conns); err != nil {
		t.Fatal(err, &log)
	}
	for _, c := range conns {
		c.Close()
	}
	for i, c := range clients {
		if b, err := io.ReadAll(c); err != nil || string(b) != texts[i] {
			t.Fatalf("connection %d: %d bytes of %d, %v\n%s", i, len(b), len(texts[i]), err, &log)
		}
	}
	<-n.Ended()
	if n.ExitCode() != 0 {
		t.Errorf("exit code %d\n%s", n.ExitCode(), &log)
	}
}
