package warmpool

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

// maxListeners is how many connections one container may have to its socket.
const maxListeners = 8

// talk is the socket in a container's directory. Whoever connects hears nothing until
// the container is claimed; then a line, which he answers with a line, or by closing
// the connection, when he has acted on it.
type talk struct {
	listener net.Listener
	ended    chan struct{} // of the accepting

	mu        sync.Mutex
	conns     []net.Conn
	told      []net.Conn
	closed    bool
	connected chan struct{} // closed at the first connection
}

func listen(dir string) (*talk, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(dir, SocketName))
	if err != nil {
		return nil, fmt.Errorf("listen for a warm container: %w", err)
	}
	// Any user of the container may connect; of this host only root gets there.
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
			return // it is closed; a passing error leaves the file
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

// send writes to who listens. The container is frozen: the line waits in the
// kernel, whose buffers are larger.
func (t *talk) send(text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, conn := range t.conns {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // a socket takes it
		if _, err := conn.Write(text); err == nil {
			t.told = append(t.told, conn)
		}
	}
}

// errNotHeard means that a program holds the socket and does not answer.
var errNotHeard = errors.New("its program has not answered on " + Dir + "/" + SocketName)

// heard returns when all who were told have answered, or have gone.
func (t *talk) heard(ctx context.Context, target *kill.Target) error {
	t.mu.Lock()
	told := t.told
	t.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		for _, conn := range told {
			_ = conn.SetReadDeadline(time.Now()) // a socket takes it
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
		t.listener.Close() // and removes its file
	}
	<-t.ended
}
