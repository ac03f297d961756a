package e2b

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// hooks posts events to webhooks: to each in the order of the events, so that one that does
// not answer delays no other. What waits is lost when the agent ends.
type hooks struct {
	life    context.Context
	notes   store.Notes
	allowed []netip.Prefix // beside public addresses
	pause   time.Duration  // between attempts
	done    *prometheus.CounterVec
	log     *slog.Logger

	mu      sync.Mutex
	waiting map[string][]event // by webhook; an empty one is being worked on
	fresh   []event            // whose webhooks are not known yet
	sorting bool
	wg      sync.WaitGroup
}

// send posts an event to the webhooks that want it. It never waits.
func (h *hooks) send(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life.Err() != nil || len(h.fresh) == maxWaiting {
		h.done.WithLabelValues("lost").Inc()
		return
	}
	h.fresh = append(h.fresh, e)
	if !h.sorting {
		h.sorting = true
		h.wg.Go(h.sort)
	}
}

// sort gives fresh events to their webhooks.
func (h *hooks) sort() {
	all, err := readHooks(h.life, h.notes)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.done.WithLabelValues("lost").Add(float64(len(h.fresh)))
		h.log.Warn("events of sandboxes are not posted: the webhooks cannot be read", "err", err)
		all = nil
	}
	for _, e := range h.fresh {
		for _, one := range all {
			if one.wants(e) {
				h.queueLocked(one.ID, e)
			}
		}
	}
	h.fresh, h.sorting = nil, false
}

func (w webhook) wants(e event) bool { return w.Enabled && slices.Contains(w.Events, e.Type) }

func (h *hooks) queueLocked(id string, e event) {
	queue, working := h.waiting[id]
	if len(queue) == maxWaiting {
		h.done.WithLabelValues("lost").Inc()
		return
	}
	h.waiting[id] = append(queue, e)
	if !working {
		h.wg.Go(func() { h.work(id) })
	}
}

// work posts the events that wait for a webhook, until there are none.
func (h *hooks) work(id string) {
	for {
		h.mu.Lock()
		queue := h.waiting[id]
		if len(queue) == 0 {
			delete(h.waiting, id)
			h.mu.Unlock()
			return
		}
		h.waiting[id] = queue[1:]
		h.mu.Unlock()
		h.done.WithLabelValues(h.deliver(id, queue[0])).Inc()
	}
}

// deliver posts an event, several times if it fails, and returns the result. The webhook is
// read each time: it may have been changed or removed.
func (h *hooks) deliver(id string, e event) string {
	for attempt := range maxAttempts {
		if attempt > 0 {
			if tasks.Sleep(h.life, h.pause) != nil {
				return "lost"
			}
		}
		n, err := store.FindNote(h.life, h.notes, hookPrefix+id)
		one := webhook{}
		if err == nil {
			err = json.Unmarshal(n.Value, &one)
		}
		if err == nil && !one.wants(e) {
			return "unwanted"
		}
		if err == nil {
			err = h.post(one, e)
		}
		if err == nil {
			return "ok"
		}
		if h.life.Err() != nil {
			return "lost"
		}
		h.log.Info("posting an event of a sandbox to a webhook", "webhook", id, "sandbox", e.SandboxID, "attempt", attempt+1, "of", maxAttempts, "err", err)
	}
	return "failed"
}

// post posts an event once. It is delivered if the status is 200 to 299.
func (h *hooks) post(one webhook, e event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(h.life, postLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, one.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("the url is not valid") // the error would have the whole url
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "holdfast", "E2b-Webhook-Id": one.ID, "E2b-Delivery-Id": newID(),
		"E2b-Signature-Version": "v1", "E2b-Signature": sign(one.Secret, body),
	} {
		r.Header.Set(name, value)
	}
	answer, err := h.client(r.URL.Scheme == "https").Do(r)
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err // without the url
	}
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // nothing of it is used
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("the status is %d", answer.StatusCode)
	}
	return nil
}

// sign returns the signature of a body as E2B documents it.
func sign(secret string, body []byte) string {
	sum := sha256.Sum256(append([]byte(secret), body...))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// client is for one request. It uses no proxy, follows no redirect, and connects only to
// addresses that mayPost allows: each one is checked after the name was resolved, so a name
// cannot lead elsewhere later.
func (h *hooks) client(secure bool) *http.Client {
	dialer := &net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return mayPost(to.Addr(), secure, h.allowed)
	}}
	return &http.Client{
		Transport:     &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// mayPost returns an error for an address that no event is posted to: the agent runs as root
// in a network that its clients may not reach. Allowed are public addresses of other hosts,
// with TLS, and the configured networks.
func mayPost(ip netip.Addr, secure bool, allowed []netip.Prefix) error {
	ip = ip.Unmap().WithZone("")
	if slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return nil
	}
	switch {
	case !secure:
		return fmt.Errorf("events are posted to %s only with https, or if e2b.webhook_networks has it", ip)
	case !public(ip):
		return fmt.Errorf("%s is no public address, and e2b.webhook_networks does not have it", ip)
	case ofHost(ip):
		return fmt.Errorf("%s is an address of this host, and e2b.webhook_networks does not have it", ip)
	}
	return nil
}

// public reports whether an address is globally reachable. Those are not that the registries
// of special addresses list (IANA, RFC 6890), such as private ones, and those of IPv6 that
// stand for one of IPv4.
func public(ip netip.Addr) bool {
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.Is6() && !global6().Contains(ip) {
		return false
	}
	return !slices.ContainsFunc(special(), func(p netip.Prefix) bool { return p.Contains(ip) })
}

// global6 is what IANA gives addresses of IPv6 from.
func global6() netip.Prefix { return netip.MustParsePrefix("2000::/3") }

func special() (all []netip.Prefix) {
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// ofHost reports whether an address is this host's: a service of it may trust the host.
func ofHost(ip netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(all, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == ip
	})
}
