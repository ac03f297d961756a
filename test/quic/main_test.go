package quic_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/builtin"
	"holdfast/test/lab/labtest"
)

// Roles of the test binary.
const (
	roleKeeper = "keeper"
	roleServer = "server"
	roleReload = "reload"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		args := os.Args[2:]
		role := map[string]func() error{
			roleServer: func() error { return serve(args[0]) },
			roleReload: func() error { return reload(args[0], args[1]) },
		}[os.Args[1]]
		switch {
		case os.Args[1] == roleKeeper:
			os.Exit(protect.Main(args, builtin.Backends(), quiet()))
		case role != nil:
			if err := role(); err != nil {
				fmt.Fprintln(os.Stderr, os.Args[1]+":", err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(labtest.Main(m))
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// drainLimit is how long an old server stays for its connections.
const drainLimit = 10 * time.Second

// serve is an echo server of QUIC that knows nothing of reloads. It answers with its pid, too.
// After SIGTERM it takes no new connection, and ends when it has none.
func serve(address string) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	cert, err := certificate()
	if err != nil {
		return err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, e)
	}}
	conn, err := lc.ListenPacket(context.Background(), "udp", address)
	if err != nil {
		return err
	}
	tr := &quic.Transport{Conn: conn}
	l, err := tr.Listen(&tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"echo"}}, &quic.Config{MaxIdleTimeout: 20 * time.Second})
	if err != nil {
		return err
	}
	fmt.Println("listening") // for reload
	os.Stdout.Close()
	go func() { <-term; l.Close() }()
	var open sync.WaitGroup
	for {
		c, err := l.Accept(context.Background())
		if err != nil {
			break
		}
		open.Go(func() { echo(c) })
	}
	done := make(chan struct{})
	go func() { open.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(drainLimit):
	}
	return nil
}

func echo(c *quic.Conn) {
	for {
		s, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		b, err := io.ReadAll(s)
		if err == nil {
			_, _ = fmt.Fprintf(s, "%d %s", os.Getpid(), b)
			s.Close()
		}
	}
}

func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// start starts a server and returns when it receives.
func start(address string) (int, error) {
	cmd := exec.Command("/proc/self/exe", roleServer, address)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	said, err := io.ReadAll(out)
	if err != nil || !bytes.HasPrefix(said, []byte("listening")) {
		return 0, fmt.Errorf("the server did not start: %q, %w", said, err)
	}
	return cmd.Process.Pid, nil
}

// reload starts a new server beside the old one, and then tells the old one to end. The file
// has the server's pid.
func reload(pidfile, address string) error {
	b, err := os.ReadFile(pidfile)
	if err != nil {
		return err
	}
	old, err := strconv.Atoi(string(b))
	if err != nil {
		return err
	}
	pid, err := start(address)
	if err != nil {
		return err
	}
	if err := os.WriteFile(pidfile, []byte(strconv.Itoa(pid)), 0o600); err != nil {
		return err
	}
	return unix.Kill(old, unix.SIGTERM)
}
