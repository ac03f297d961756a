package preempt

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"holdfast/test/poll"
)

func logindFor(b *bus, c *clock) *logind {
	l := newLogind(b.address)
	l.now = c.now
	return l
}

func TestLogindWaitsUntilDone(t *testing.T) {
	b, clock := startBus(t), newClock()
	s := startLogin1(t, b)
	l := listen(t, logindFor(b, clock))
	lock := s.taken(t, 1)
	s.prepare(t, true)
	n := l.want(t, Terminate, "shuts down", clock.now().Add(30*time.Second))
	if !lock.held(t) {
		t.Fatal("the shutdown does not wait")
	}
	for range 2 {
		if err := n.Done(t.Context()); err != nil {
			t.Error(err)
		}
	}
	lock.released(t)
	l.stop()
	l.silent(t)
	if err := n.Done(context.Background()); err != nil { // late
		t.Error(err)
	}
}

func TestLogindShutdownThatIsCancelled(t *testing.T) {
	b, clock := startBus(t), newClock()
	s := startLogin1(t, b)
	l := listen(t, logindFor(b, clock))
	first := s.taken(t, 1)
	s.prepare(t, true)
	n := l.want(t, Terminate, "shuts down", clock.now().Add(30*time.Second))
	s.set(func() { s.delay = uint64(60_000_000) }) // logind's configuration has changed meanwhile
	s.prepare(t, false)
	l.want(t, Withdrawn, "shuts down", time.Time{})
	second := s.taken(t, 2)
	first.released(t) // one at a time

	s.prepare(t, true)
	l.want(t, Terminate, "shuts down", clock.now().Add(time.Minute))
	if err := n.Done(t.Context()); err != nil { // of the earlier shutdown
		t.Error(err)
	}
	if !second.held(t) {
		t.Error("another shutdown's inhibitor was let go")
	}
	l.stop()
	second.released(t)
}

func TestLogindShutdownThatHasBegun(t *testing.T) {
	b := startBus(t)
	s := startLogin1(t, b)
	s.set(func() { s.preparing = true })
	l := listen(t, logindFor(b, newClock()))
	n := l.want(t, Terminate, "shuts down", time.Time{})
	if err := n.Done(t.Context()); err != nil { // without an inhibitor
		t.Error(err)
	}
	s.prepare(t, false)
	l.want(t, Withdrawn, "shuts down", time.Time{})
	s.taken(t, 1)
}

// TestSignalsOfOtherSendersAreIgnored: any user of a host may send a signal to a
// connection on the system bus. A forged shutdown signal would end every session.
func TestSignalsOfOtherSendersAreIgnored(t *testing.T) {
	b := startBus(t)
	s := startLogin1(t, b)
	l := listen(t, logindFor(b, newClock()))
	s.taken(t, 1)
	s.mu.Lock()
	client := s.client
	s.mu.Unlock()
	other := b.connect(t)
	if err := other.Emit(login1Path, prepareForShutdown, true); err != nil {
		t.Fatal(err)
	}
	// Both signals, sent directly to the connection, which needs no match.
	for _, forged := range []struct {
		path          dbus.ObjectPath
		iface, member string
		body          []any
	}{
		{login1Path, login1Manager, "PrepareForShutdown", []any{true}},
		{"/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged", []any{login1, "", ":1.99"}},
	} {
		call := other.Send(&dbus.Message{
			Type: dbus.TypeSignal,
			Headers: map[dbus.HeaderField]dbus.Variant{
				dbus.FieldDestination: dbus.MakeVariant(client),
				dbus.FieldPath:        dbus.MakeVariant(forged.path),
				dbus.FieldInterface:   dbus.MakeVariant(forged.iface),
				dbus.FieldMember:      dbus.MakeVariant(forged.member),
				dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf(forged.body...)),
			},
			Body: forged.body,
		}, nil)
		if call != nil && call.Err != nil {
			t.Fatal(call.Err)
		}
	}
	// The bus answers a call after it has delivered the earlier messages.
	if err := other.BusObject().Call("org.freedesktop.DBus.GetId", 0).Err; err != nil {
		t.Fatal(err)
	}
	s.prepare(t, false) // logind's last signal: the source takes a new inhibitor
	s.taken(t, 2)
	l.silent(t)
	if strings.Contains(l.log.String(), "WARN") {
		t.Error(l.log)
	}
	s.prepare(t, true)
	l.want(t, Terminate, "shuts down", newClock().now().Add(30*time.Second))
}

func TestLogindAndBusRestart(t *testing.T) {
	b, clock := startBus(t), newClock()
	s := startLogin1(t, b)
	l := listen(t, logindFor(b, clock))
	s.taken(t, 1)

	if err := s.conn.Close(); err != nil {
		t.Fatal(err)
	}
	s = startLogin1(t, b)
	s.taken(t, 1)

	logged := func(text string, n int) func() bool {
		return func() bool { return strings.Count(l.log.String(), text) == n }
	}
	poll.Until(t, "working with the new logind", logged("answers again", 1))

	b.stop()
	poll.Until(t, "failing without a bus", logged("WARN", 2))
	l.silent(t)
	b.start(t)
	s = startLogin1(t, b)
	s.taken(t, 1)
	s.prepare(t, true)
	l.want(t, Terminate, "shuts down", clock.now().Add(30*time.Second))
}

func TestLogindThatHangsOrTalksNonsense(t *testing.T) {
	b := startBus(t)
	none := func(n ...Notice) { t.Errorf("stands: %+v", n) }
	source := logindFor(b, newClock())
	source.timeout = 200 * time.Millisecond
	if err := source.Run(t.Context(), none); err == nil || !strings.Contains(err.Error(), "look for logind") {
		t.Errorf("without logind: %v", err)
	}
	s := startLogin1(t, b)
	s.set(func() { s.hangs = true })
	if err := source.Run(t.Context(), none); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hanging: %v", err)
	}
	s.set(func() { s.delay = "soon" })
	if err := source.Run(t.Context(), none); err == nil || !strings.Contains(err.Error(), "InhibitDelayMaxUSec is soon") {
		t.Errorf("nonsense: %v", err)
	}
}

func TestBusThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus")
	silent, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	source := newLogind("unix:path=" + path)
	source.timeout = 50 * time.Millisecond
	if err := source.Run(t.Context(), func(n ...Notice) { t.Errorf("stands: %+v", n) }); err == nil || !strings.Contains(err.Error(), "connect to the system bus") {
		t.Errorf("got %v", err)
	}
}
