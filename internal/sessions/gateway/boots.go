package gateway

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"holdfast"
)

var errCrossSite = errors.New("a page of another site may not start a session")

// bootsNothing reports whether r may not boot a session: a page of another site sent it
// without its user going there. Browsers set the Sec-Fetch headers, and pages cannot
// (Fetch Metadata Request Headers, W3C). Requests without them do not come from a
// browser, or from one of before 2023. An allowed origin may boot sessions.
func (c Config) bootsNothing(r *http.Request) bool {
	h := r.Header
	if h.Get("Sec-Fetch-Site") != "cross-site" || slices.Contains(c.Origins, "*") {
		return false
	}
	if len(h["Origin"]) > 0 && allowedOrigin(c.Origins, r) {
		return false
	}
	navigation := r.Method == http.MethodGet && h.Get("Sec-Fetch-Mode") == "navigate" && h.Get("Sec-Fetch-Dest") == "document"
	ahead := h.Get("Sec-Purpose")+h.Get("Purpose")+h.Get("X-Moz") != "" // a prefetch or a prerender
	return !navigation || ahead
}

// clientOf returns the client of a connection with that remote address (host:port): an
// IPv4 address, or the /64 of an IPv6 address, which one client has to itself (RFC 6177).
// An address that cannot be parsed is the zero Addr.
func clientOf(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	addr := ap.Addr().Unmap().WithZone("")
	if addr.Is6() {
		p, _ := addr.Prefix(64) // fails only for more than 128 bits
		return p.Addr()
	}
	return addr
}

// bootsError reports that a client has booted too many sessions.
type bootsError struct {
	perMinute int
	after     time.Duration // until the client may boot another one
}

func (e *bootsError) Error() string {
	return fmt.Sprintf("this address has started %d sessions within a minute", e.perMinute)
}

// Bounds of the table of clients.
const (
	bootClients = 16384       // about 200 bytes each
	bootSweep   = time.Second // interval of the search for entries that are not needed
)

// boots limits how many sessions each client boots. Its method may be called from any
// goroutine.
type boots struct {
	perMinute int // 0: no limit
	most      int // clients

	mu      sync.Mutex
	clients map[netip.Addr]*rate.Limiter
	rest    *rate.Limiter // of all clients for which the table has no room
	swept   time.Time
}

func newBoots(perMinute int) *boots {
	b := &boots{perMinute: perMinute, most: bootClients, clients: map[netip.Addr]*rate.Limiter{}}
	b.rest = b.limiter()
	return b
}

func (b *boots) limiter() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(float64(b.perMinute)/60), b.perMinute)
}

// take counts a boot of the client. The error is a *bootsError.
func (b *boots) take(client netip.Addr, now time.Time) error {
	if b.perMinute == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.limiterOfLocked(client, now).ReserveN(now, 1)
	if d := r.DelayFrom(now); d > 0 {
		r.CancelAt(now)
		return &bootsError{b.perMinute, d}
	}
	return nil
}

func (b *boots) limiterOfLocked(client netip.Addr, now time.Time) *rate.Limiter {
	if l := b.clients[client]; l != nil {
		return l
	}
	if len(b.clients) >= b.most && now.Sub(b.swept) >= bootSweep {
		b.swept = now
		// A limiter that is full again is like a new one.
		maps.DeleteFunc(b.clients, func(_ netip.Addr, l *rate.Limiter) bool { return l.TokensAt(now) >= float64(b.perMinute) })
	}
	if len(b.clients) >= b.most {
		return b.rest
	}
	l := b.limiter()
	b.clients[client] = l
	return l
}

// mayBoot is called before this request boots its session.
func (t *request) mayBoot() error {
	if t.bootsNothing {
		return holdfast.WithHint(errCrossSite, "open the session itself first, or add the page's origin to gateway.origins")
	}
	return t.gateway.boots.take(t.client, time.Now())
}
