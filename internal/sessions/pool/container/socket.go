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

// socket is the socket in a container's directory. A connected program receives nothing
// until the container is claimed. Then it receives one line. When it has acted on it,
// it answers with a line or closes the connection.
type socket struct {
	listener net.Listener
	ended    chan struct{} // closed when accept has returned

	mu        sync.Mutex
	conns     []net.Conn
	notified  []net.Conn
	closed    bool
	connected chan struct{} // closed at the first connection
}

func listen(dir string) (*socket, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(dir, SocketName))
	if err != nil {
		return nil, fmt.Errorf("listening for a warm container: %w", err)
	}
	// Any user of the container may connect. On this host only root can reach it.
	if err := os.Chmod(filepath.Join(dir, SocketName), 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &socket{listener: l, ended: make(chan struct{}), connected: make(chan struct{})}
	go s.accept()
	return s, nil
}

func (s *socket) accept() {
	defer close(s.ended)
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return // it is closed; after a temporary error the file remains
		}
		s.mu.Lock()
		if s.closed || len(s.conns) >= maxListeners {
			conn.Close()
			s.mu.Unlock()
			continue
		}
		s.conns = append(s.conns, conn)
		if len(s.conns) == 1 {
			close(s.connected)
		}
		s.mu.Unlock()
	}
}

// send writes to the connected programs. The container is frozen, so the kernel
// buffers the line; its buffers are larger than that.
func (s *socket) send(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // a unix socket supports deadlines
		if _, err := conn.Write(text); err == nil {
			s.notified = append(s.notified, conn)
		}
	}
}

// errNoAnswer means that a program is connected to the socket and does not answer.
var errNoAnswer = errors.New("its program has not answered on " + Dir + "/" + SocketName)

// awaitAnswers returns when all programs that received the line have answered or closed the
// connection.
func (s *socket) awaitAnswers(ctx context.Context, target *kill.Target) error {
	s.mu.Lock()
	notified := s.notified
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		for _, conn := range notified {
			_ = conn.SetReadDeadline(time.Now()) // a unix socket supports deadlines
		}
	})
	defer stop()
	for _, conn := range notified {
		_, err := bufio.NewReaderSize(conn, 64).ReadSlice('\n')
		switch {
		case target.Init().Exited():
			return errors.New("the container ended")
		case ctx.Err() != nil && err != nil:
			return errNoAnswer
		}
	}
	return nil
}

// close ends all connections. It may be called more than once, and on nil.
func (s *socket) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	for _, conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	if !closed {
		s.listener.Close() // and removes the socket's file
	}
	<-s.ended
}
