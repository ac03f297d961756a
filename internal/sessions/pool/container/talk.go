package container

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"holdfast/internal/sessions/kill"
)

// maxListeners bounds the connections of one container to its socket.
const maxListeners = 8

// talk is the socket in a container's directory. A connected program receives nothing
// until the container is claimed. Then it receives one line. When it has acted on it,
// it answers with a line or closes the connection.
type talk struct {
	listener net.Listener
	ended    chan struct{} // closed when accept has returned

	mu        sync.Mutex
	conns     []net.Conn
	told      []net.Conn
	closed    bool
	connected chan struct{} // closed at the first connection
}

func listen(dir string) (*talk, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(dir, SocketName))
	if err != nil {
		return nil, fmt.Errorf("listening for a warm container: %w", err)
	}
	// Any user of the container may connect. On this host only root can reach it.
	if err := os.Chmod(filepath.Join(dir, SocketName), 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	t := &talk{listener: l, ended: make(chan struct{}), connected: make(chan struct{})}
	go t.accept()
	return t, nil
}

func (t *talk) accept() {
	defer close(t.ended)
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			return // it is closed; after a temporary error the file remains
		}
		t.mu.Lock()
		if t.closed || len(t.conns) >= maxListeners {
			conn.Close()
			t.mu.Unlock()
			continue
		}
		t.conns = append(t.conns, conn)
		if len(t.conns) == 1 {
			close(t.connected)
		}
		t.mu.Unlock()
	}
}

// send writes to the connected programs. The container is frozen, so the kernel
// buffers the line; its buffers are larger than that.
func (t *talk) send(text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, conn := range t.conns {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // a unix socket supports deadlines
		if _, err := conn.Write(text); err == nil {
			t.told = append(t.told, conn)
		}
	}
}

// errNotHeard means that a program is connected to the socket and does not answer.
var errNotHeard = errors.New("its program has not answered on " + Dir + "/" + SocketName)

// heard returns when all programs that received the line have answered or closed the
// connection.
func (t *talk) heard(ctx context.Context, target *kill.Target) error {
	t.mu.Lock()
	told := t.told
	t.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		for _, conn := range told {
			_ = conn.SetReadDeadline(time.Now()) // a unix socket supports deadlines
		}
	})
	defer stop()
	for _, conn := range told {
		_, err := bufio.NewReaderSize(conn, 64).ReadSlice('\n')
		switch {
		case target.Init().Exited():
			return errors.New("the container ended")
		case ctx.Err() != nil && err != nil:
			return errNotHeard
		}
	}
	return nil
}

// close ends all connections. It may be called more than once.
func (t *talk) close() {
	t.mu.Lock()
	closed := t.closed
	t.closed = true
	for _, conn := range t.conns {
		conn.Close()
	}
	t.mu.Unlock()
	if !closed {
		t.listener.Close() // and removes the socket's file
	}
	<-t.ended
}
