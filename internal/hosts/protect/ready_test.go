package protect

import (
	"net/netip"
	"testing"
	"time"

	"holdfast/internal/platform/linux/sockdiag"
)

func listener(cookie uint64, addr string) sockdiag.Listener {
	return sockdiag.Listener{Cookie: cookie, Addr: netip.MustParseAddrPort(addr)}
}

func TestReadiness(t *testing.T) {
	type at struct {
		ms        int
		listeners []sockdiag.Listener
		exit      bool
		killed    bool
		want      Reason
	}
	old := listener(1, "0.0.0.0:80")
	old2 := listener(2, "[::]:80")
	new1, new2 := listener(3, "0.0.0.0:80"), listener(4, "[::]:80")
	elsewhere := listener(5, "127.0.0.1:80")
	ls := func(l ...sockdiag.Listener) []sockdiag.Listener { return l }
	for name, c := range map[string]struct {
		old   []sockdiag.Listener
		steps []at
	}{
		"hard restart": {ls(old), []at{
			{1, ls(old), false, false, ""},
			{2, nil, false, false, ""},
			{900, nil, true, false, ""},
			{9000, nil, false, false, ""},
			{9001, ls(new1), false, false, NewListens},
		}},
		"before the command is done": {ls(old), []at{
			{2, nil, false, false, ""},
			{3, ls(new1), false, false, NewListens},
		}},
		"overlapping": {ls(old), []at{
			{2, ls(old, new1), false, false, ""},
			{3, ls(old, new1), true, false, ""},
			{1000, ls(old, new1), false, false, ""},
			{1001, ls(new1), false, false, NewListens},
		}},
		"one address after the other": {ls(old, old2), []at{
			{2, ls(new1), false, false, ""},
			{3, ls(new1, new2), false, false, NewListens},
		}},
		"an address less": {ls(old, old2), []at{
			{2, ls(new1), true, false, ""},
			{200, ls(new1), false, false, ""},
			{300, ls(new1), false, false, NewListens},
		}},
		"another address": {ls(old), []at{
			{2, ls(elsewhere), false, false, ""},
			{1000, ls(elsewhere), false, false, ""},
			{1001, ls(elsewhere), true, false, ""},
			{1300, ls(elsewhere), false, false, NewListens},
		}},
		"the sockets are kept": {ls(old), []at{
			{1000, ls(old), true, false, ""},
			{1249, ls(old), false, false, ""},
			{1250, ls(old), false, false, OldStayed},
		}},
		"it stops after the command is done": {ls(old), []at{
			{1000, ls(old), true, false, ""},
			{1200, nil, false, false, ""},
			{5000, nil, false, false, ""},
			{5001, ls(new1), false, false, NewListens},
		}},
		"the command is killed": {ls(old), []at{
			{1000, nil, true, true, CommandKill},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			r := newReadiness(c.old, begin)
			for _, s := range c.steps {
				now := begin.Add(time.Duration(s.ms) * time.Millisecond)
				if s.exit {
					r.exit(s.killed, now)
				}
				if got := r.judge(s.listeners, now); got != s.want {
					t.Errorf("after %d ms: %q, want %q", s.ms, got, s.want)
				}
			}
		})
	}
}

func TestServed(t *testing.T) {
	dual := listener(1, "[::]:80")
	only := dual
	only.V6Only = true
	for _, c := range []struct {
		address string
		l       sockdiag.Listener
		want    bool
	}{
		{"80", listener(1, "127.0.0.1:80"), true},
		{"80", dual, true},
		{"81", dual, false},
		{"127.0.0.1:80", listener(1, "127.0.0.1:80"), true},
		{"127.0.0.1:80", listener(1, "127.0.0.2:80"), false},
		{"127.0.0.1:80", listener(1, "0.0.0.0:80"), true},
		{"127.0.0.1:80", dual, true},
		{"127.0.0.1:80", only, false},
		{"[::1]:80", only, true},
		{"[::1]:80", listener(1, "0.0.0.0:80"), false},
		{"0.0.0.0:80", listener(1, "10.0.0.1:80"), true},
		{"127.0.0.1:80", listener(1, "[::ffff:127.0.0.1]:80"), true},
		{"[::1]:80", listener(1, "[::ffff:127.0.0.1]:80"), false},
		{"10.0.0.1:80", listener(1, "[::ffff:0.0.0.0]:80"), true},
	} {
		a, err := ParseAddress(c.address)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Served(c.l); got != c.want {
			t.Errorf("%s served by %v (only IPv6: %v): %v, want %v", c.address, c.l.Addr, c.l.V6Only, got, c.want)
		}
	}
	for _, bad := range []string{"", "0", "65536", "-1", "localhost:80", "127.0.0.1", "127.0.0.1:0", "[::1]"} {
		if a, err := ParseAddress(bad); err == nil {
			t.Errorf("ParseAddress(%q) = %v", bad, a)
		}
	}
}

func TestInUnit(t *testing.T) {
	const unit = "nginx.service"
	for text, want := range map[string]bool{
		"0::/system.slice/nginx.service\n":                                     true,
		"0::/system.slice/nginx.service/worker\n":                              true,
		"12:pids:/system.slice/nginx.service\n1:name=systemd:/user.slice\n":    false,
		"12:pids:/x\n1:name=systemd:/system.slice/nginx.service\n0::/system\n": true,
		"0::/system.slice/my-nginx.service\n":                                  false,
		"":                                                                     false,
	} {
		if got := inUnit(text, unit); got != want {
			t.Errorf("inUnit(%q) = %v", text, got)
		}
	}
}

func TestBusy(t *testing.T) {
	const ms = time.Millisecond
	idle := sockdiag.Conn{Inode: 1, HasReceived: true, SegmentsSent: young + 1, SinceSent: 50 * ms, SinceReceived: 60 * ms}
	for name, c := range map[string]struct {
		change func(*sockdiag.Conn)
		want   bool
	}{
		"kept alive and idle":        {func(*sockdiag.Conn) {}, false},
		"a new request":              {func(c *sockdiag.Conn) { c.SinceReceived = 40 * ms }, true},
		"no request yet":             {func(c *sockdiag.Conn) { c.HasReceived = false }, true},
		"no answer yet":              {func(c *sockdiag.Conn) { c.SegmentsSent = 0 }, true},
		"an answer on its way":       {func(c *sockdiag.Conn) { c.Unsent = 1 }, true},
		"a request not read":         {func(c *sockdiag.Conn) { c.Unread = 1 }, true},
		"of no process":              {func(c *sockdiag.Conn) { c.Inode, c.Unread = 0, 1 }, false},
		"between two steps":          {func(c *sockdiag.Conn) { c.SegmentsSent = 2 }, true},
		"idle after a first answer":  {func(c *sockdiag.Conn) { c.SegmentsSent, c.SinceSent, c.SinceReceived = 2, quiet, 2*quiet }, false},
		"in the same tick, just now": {func(c *sockdiag.Conn) { c.SinceReceived, c.SinceSent = 4*ms, 4*ms }, true},
		"in the same tick, long ago": {func(c *sockdiag.Conn) { c.SinceReceived = 50 * ms }, false},
	} {
		conn := idle
		c.change(&conn)
		if got := busy(conn); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// With a gate a listener counts only when the restart is said to have ended: that of
// `nginx -t` before the start does not.
func TestGate(t *testing.T) {
	begin := time.Now()
	r := newReadiness([]sockdiag.Listener{listener(1, "0.0.0.0:80")}, begin)
	r.gated = true
	test, server := listener(2, "0.0.0.0:80"), listener(3, "0.0.0.0:80")
	for _, ls := range [][]sockdiag.Listener{nil, {test}, nil, {server}} {
		if got := r.judge(ls, begin); got != "" {
			t.Errorf("released because %s", got)
		}
	}
	r.exit(false, begin)
	if got := r.judge([]sockdiag.Listener{server}, begin); got != NewListens {
		t.Errorf("%q", got)
	}
}
