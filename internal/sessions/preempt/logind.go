package preempt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"

	"holdfast"
)

// logind's side of a shutdown: systemd's "Inhibitor Locks"
// (docs/INHIBITOR_LOCKS.md) and org.freedesktop.login1(5).
const (
	login1        = "org.freedesktop.login1"
	login1Path    = "/org/freedesktop/login1"
	login1Manager = "org.freedesktop.login1.Manager"

	prepareForShutdown = login1Manager + ".PrepareForShutdown"
	nameOwnerChanged   = "org.freedesktop.DBus.NameOwnerChanged"
)

// logindTimeout bounds a call, in place of D-Bus's 25 seconds.
const logindTimeout = 5 * time.Second

// logind holds a delay inhibitor. A shutdown or reboot of the host then waits until
// the node is drained, or for logind's InhibitDelayMaxSec.
type logind struct {
	address string // of the bus; "" for the system bus
	timeout time.Duration
	now     func() time.Time
}

func newLogind(address string) *logind {
	return &logind{address: address, timeout: logindTimeout, now: time.Now}
}

func (l *logind) Name() string { return "logind" }

// Run returns an error when logind or the bus restarts. The next Run takes the
// inhibitor again.
func (l *logind) Run(ctx context.Context, report func(...Notice)) error {
	s, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.take(ctx); err != nil {
		going, perr := s.property(ctx, "PreparingForShutdown")
		if perr != nil || going != true {
			return err
		}
		// logind grants no inhibitor for a shutdown that has begun already.
		report(s.notice(time.Time{}))
	} else {
		report()
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case signal, ok := <-s.signals:
			if !ok {
				return errors.New("the connection to the bus is lost")
			}
			if err := s.handle(ctx, signal, report); err != nil {
				return err
			}
		}
	}
}

// logindSession is one connection to logind, with the inhibitor taken on it.
type logindSession struct {
	*logind
	conn    *dbus.Conn
	manager dbus.BusObject
	owner   string // logind's unique name: the sender of its signals
	signals chan *dbus.Signal
	lock    *os.File      // nil if none is held
	delay   time.Duration // how long a shutdown waits for the lock
}

// open connects and subscribes; later signals of logind arrive in signals.
func (l *logind) open(ctx context.Context) (*logindSession, error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return nil, holdfast.WithHint(fmt.Errorf("connect to the system bus: %w", err),
			"logind needs a host with systemd and D-Bus; in a container, mount /run/dbus/system_bus_socket")
	}
	s := &logindSession{logind: l, conn: conn, manager: conn.Object(login1, login1Path), signals: make(chan *dbus.Signal, 16)}
	conn.Signal(s.signals)
	if err := s.listen(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// connect connects to the bus within the timeout: the library would wait without
// limit for a bus that accepts and does not answer. The connection ends with ctx.
func (l *logind) connect(ctx context.Context) (*dbus.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(l.timeout, cancel)
	// Signals stay in order: a cancellation must follow its shutdown.
	options := []dbus.ConnOption{dbus.WithContext(ctx), dbus.WithSignalHandler(dbus.NewSequentialSignalHandler())}
	var conn *dbus.Conn
	var err error
	if l.address == "" {
		conn, err = dbus.ConnectSystemBus(options...)
	} else {
		conn, err = dbus.Connect(l.address, options...)
	}
	if !late.Stop() && err == nil {
		_ = conn.Close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		return nil, err
	}
	context.AfterFunc(conn.Context(), cancel)
	return conn, nil
}

func (s *logindSession) listen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for _, match := range [][]dbus.MatchOption{
		{dbus.WithMatchSender(login1), dbus.WithMatchObjectPath(login1Path), dbus.WithMatchInterface(login1Manager), dbus.WithMatchMember("PrepareForShutdown")},
		{dbus.WithMatchSender("org.freedesktop.DBus"), dbus.WithMatchInterface("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, login1)},
	} {
		if err := s.conn.AddMatchSignalContext(ctx, match...); err != nil {
			return fmt.Errorf("listen to logind: %w", err)
		}
	}
	// The call makes the bus start logind if it can, so that the name has an owner.
	err := s.manager.CallWithContext(ctx, "org.freedesktop.DBus.Peer.Ping", 0).Err
	if err == nil {
		err = s.conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, login1).Store(&s.owner)
	}
	if err != nil {
		return fmt.Errorf("look for logind: %w", err)
	}
	return nil
}

// close closes the connection and releases the inhibitor.
func (s *logindSession) close() {
	_ = s.lock.Close() // a nil file, too
	_ = s.conn.Close()
}

// take takes the inhibitor and reads how long a shutdown waits for it.
func (s *logindSession) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	max, err := s.property(ctx, "InhibitDelayMaxUSec")
	if err != nil {
		return err
	}
	usec, _ := max.(uint64)
	if usec == 0 || usec > uint64(24*time.Hour/time.Microsecond) {
		return fmt.Errorf("logind's InhibitDelayMaxUSec is %v", max)
	}
	var fd dbus.UnixFD
	err = s.manager.CallWithContext(ctx, login1Manager+".Inhibit", 0, "shutdown", "holdfast", "sessions are being handed over", "delay").Store(&fd)
	if err != nil {
		return fmt.Errorf("take an inhibitor from logind: %w", err)
	}
	_ = s.lock.Close()
	s.lock, s.delay = os.NewFile(uintptr(fd), "inhibitor"), time.Duration(usec)*time.Microsecond
	return nil
}

func (s *logindSession) property(ctx context.Context, name string) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var v dbus.Variant
	if err := s.manager.CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, login1Manager, name).Store(&v); err != nil {
		return nil, fmt.Errorf("read logind's %s: %w", name, err)
	}
	return v.Value(), nil
}

// handle acts on a signal. Any process can send signals to this connection directly,
// past the subscription, so handle checks the sender.
func (s *logindSession) handle(ctx context.Context, signal *dbus.Signal, report func(...Notice)) error {
	switch {
	case signal.Sender == "org.freedesktop.DBus" && signal.Name == nameOwnerChanged:
		var name, old, now string
		if dbus.Store(signal.Body, &name, &old, &now) == nil && name == login1 && now != s.owner {
			return errors.New("logind has restarted")
		}
	case signal.Sender == s.owner && signal.Name == prepareForShutdown:
		var going bool
		if err := dbus.Store(signal.Body, &going); err != nil {
			return fmt.Errorf("PrepareForShutdown: %w", err)
		}
		if going {
			report(s.notice(s.now().Add(s.delay)))
			return nil
		}
		if err := s.take(ctx); err != nil { // the shutdown was cancelled: prepare for the next one
			return err
		}
		report()
	}
	return nil
}

// notice returns the notice of a shutdown that waits for the current lock.
func (s *logindSession) notice(deadline time.Time) Notice {
	lock := s.lock
	return Notice{
		Kind:     Terminate,
		Reason:   "the host shuts down or reboots",
		Deadline: deadline,
		ID:       "shutdown",
		Done: func(context.Context) error {
			if err := lock.Close(); err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, os.ErrInvalid) {
				return fmt.Errorf("release the inhibitor: %w", err)
			}
			return nil
		},
	}
}
