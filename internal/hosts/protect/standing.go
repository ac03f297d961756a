package protect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/standby"
	"holdfast/internal/platform/tasks"
)

// argStanding is the first argument of a standing keeper; its socket is the second.
const argStanding = "standing"

const (
	// maxClients limits how many protects may be connected at once. A further one
	// starts its own keeper.
	maxClients = 64
	// MaxInstalled limits how many addresses may be installed.
	MaxInstalled = 100
	// refresh is the interval at which a standing keeper checks whether the known
	// processes still have the listeners: 0.1 ms of work, more only if one is
	// new.
	refresh = 10 * time.Second
)

// standing is a keeper that waits for protects. At rest it has nothing in the
// kernel but its socket: no rule, no program, no option; and what a Preparer prepared.
type standing struct {
	backends []Backend
	owners   *owners
	ledger   *ledger
	log      *slog.Logger
	clients  chan struct{} // limits the connected protects
}

// serveStanding is the main function of the process that StartStanding created.
// It listens on a socket at path and reports success or an error to its
// starter. It ends on request or on SIGTERM, once nothing is held.
func serveStanding(path string, backends []Backend, log *slog.Logger) error {
	term := make(chan os.Signal, 1)
	standby.Settle(keeperFD, term)
	defer signal.Stop(term)
	s := &standing{
		backends: backends, owners: newOwners(), ledger: newLedger(), log: log,
		clients: make(chan struct{}, maxClients),
	}
	starter := os.NewFile(keeperFD, "starter")
	l, err := listenAt(path)
	if err != nil {
		_, e := io.WriteString(starter, err.Error())
		return errors.Join(err, e, starter.Close())
	}
	if err := starter.Close(); err != nil { // EOF without a message means success
		return errors.Join(err, l.Close())
	}
	return s.serve(l, term)
}

// listenAt listens on a unix socket that only its owner may connect to. An
// existing socket belongs to a dead keeper: the caller has verified that.
func listenAt(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("stand by: %w", err)
	}
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("stand by: %w", err)
	}
	return l, nil
}

// serve serves protects until the keeper is to end and nothing is held.
func (s *standing) serve(l *net.UnixListener, term <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(context.Background())
	var fresh sync.WaitGroup
	fresh.Go(func() { s.keepFresh(ctx) })
	accepting := make(chan error, 1)
	go func() { accepting <- s.accept(l) }()
	var err error
	select {
	case err = <-accepting:
	case <-term:
	case <-s.ledger.leaving:
	}
	s.ledger.quit()
	err = errors.Join(err, l.Close()) // which removes the socket
	s.ledger.holds.Wait()
	cancel()
	fresh.Wait()
	// The end of this process closes the connections that are still open.
	return errors.Join(err, prepare(s.backends, nil))
}

// accept accepts protects until the listener is closed.
func (s *standing) accept(l *net.UnixListener) error {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("stand by: %w", err)
		}
		pid, err := peer(c)
		if err != nil {
			s.log.Warn("protect: refuse a client", "err", err)
			c.Close()
			continue
		}
		select {
		case s.clients <- struct{}{}:
			go s.client(c, pid)
		default:
			c.Close()
		}
	}
}

func (s *standing) client(c *net.UnixConn, pid int) {
	defer func() { <-s.clients }()
	v := newServer(c, s.backends, s.owners, s.ledger, s.log)
	v.starter = pid
	if err := v.run(); err != nil {
		s.log.Warn("protect: a client", "err", err)
	}
	for _, wait := range v.linger {
		go wait() // for Spec.UDPFor at most; the end of this process ends what it keeps
	}
	s.learn()
}

// peer returns the pid of the process at the other end. It fails unless that
// runs as root or as the current user.
func peer(c *net.UnixConn) (pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(e, err); err != nil {
		return 0, fmt.Errorf("read the peer credentials: %w", err)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("user %d may not connect", cred.Uid)
	}
	return int(cred.Pid), nil
}

// keepFresh makes the first hold as fast as later ones. Then it checks every
// refresh which processes serve the ports, until ctx ends.
func (s *standing) keepFresh(ctx context.Context) {
	for _, b := range s.backends {
		if w, ok := b.(Warmer); ok {
			w.Warm()
		}
	}
	_ = tasks.Every(ctx, refresh, s.learn) // it returns no error
}

// learn looks up the processes that have the current listeners open, unless
// they are known.
func (s *standing) learn() {
	var as []Address
	for _, i := range s.ledger.list() {
		as = append(as, i.Address)
	}
	sk, err := newSockets(as, s.owners)
	if err != nil {
		return // nothing is installed, or the next hold looks them up itself
	}
	defer sk.Close()
	ls, err := sk.Listeners()
	if err != nil {
		return
	}
	s.owners.learn(inodesOf(ls))
}
