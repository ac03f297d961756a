package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/control/api/apitest"
	"holdfast/test/poll"
)

const secret = "a secret of tests"

// hook is a request for a webhook with all events.
func hook(address string) string {
	return fmt.Sprintf(`{"name":"tests","url":%q,"signatureSecret":%q,"events":["%s"]}`, address, secret, strings.Join(eventTypes(), `","`))
}

// receiver gets events. It refuses the first ones.
type receiver struct {
	mu      sync.Mutex
	refuses int
	got     []event
	wrong   []string
	headers []http.Header
}

func (x *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.URL.Path == "/away" {
		http.Redirect(w, r, "/events", http.StatusTemporaryRedirect)
		return
	}
	body, err := io.ReadAll(r.Body)
	var e event
	// As the page of E2B verifies it.
	sum := sha256.Sum256([]byte(secret + string(body)))
	want := strings.TrimRight(strings.NewReplacer("+", "-", "/", "_").Replace(base64.StdEncoding.EncodeToString(sum[:])), "=")
	if err != nil || json.Unmarshal(body, &e) != nil || r.Header.Get("e2b-signature") != want || r.Header.Get("e2b-signature-version") != "v1" {
		x.wrong = append(x.wrong, string(body))
	}
	x.headers = append(x.headers, r.Header)
	if x.refuses > 0 {
		x.refuses--
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	x.got = append(x.got, e)
}

func (x *receiver) types() (types []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.got {
		types = append(types, strings.TrimPrefix(e.Type, "sandbox.lifecycle."))
	}
	return types
}

// A webhook gets each event once and in order, although the first posts fail, and the
// events stay for a while. Redirects are not followed.
func TestWebhooks(t *testing.T) {
	b := &apitest.Backend{}
	d := newServer(t, b, netip.MustParsePrefix("127.0.0.0/8"))
	d.hooks.pause = time.Millisecond
	recording, stop := context.WithCancel(t.Context())
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		d.record(recording)
	}()
	x := &receiver{refuses: maxAttempts - 1}
	srv := httptest.NewServer(x)
	defer srv.Close()
	register := func(path string) (w webhook) {
		status, text, _ := ask(t, d, "POST", "/events/webhooks", hook(srv.URL+path))
		if status != http.StatusCreated || json.Unmarshal([]byte(text), &w) != nil || strings.Contains(text, secret) || w.ID == "" {
			t.Fatalf("%d %s", status, text)
		}
		return w
	}
	one, away := register("/events"), register("/away")
	if status, text, _ := ask(t, d, "PATCH", "/events/webhooks/"+away.ID, `{"events":["sandbox.lifecycle.paused"]}`); status != http.StatusOK || !strings.Contains(text, `"events":["sandbox.lifecycle.paused"]`) {
		t.Errorf("%d %s", status, text)
	}

	s := created(t, d, `{"templateID":"saved","metadata":{"a":"1"}}`)
	for _, call := range []string{"POST timeout", "POST pause", "POST pause", "POST connect", "DELETE ", "DELETE "} { // the second ones fail
		method, what, _ := strings.Cut(call, " ")
		ask(t, d, method, strings.TrimSuffix("/sandboxes/"+s.SandboxID+"/"+what, "/"), `{"timeout":60}`)
	}
	want := []string{"created", "updated", "paused", "resumed", "killed"}
	poll.Until(t, "all events are posted", func() bool { return len(x.types()) == len(want) })
	if got := x.types(); !slices.Equal(got, want) || len(x.wrong) != 0 {
		t.Errorf("%v; %q are not signed", got, x.wrong)
	}
	first, paused, last := x.got[0], x.got[2], x.got[4]
	if first.SandboxID != s.SandboxID || first.Data.Metadata["a"] != "1" || first.ExecutionID == last.ExecutionID || first.ExecutionID != paused.ExecutionID || paused.Data.Execution == nil || x.got[1].Data.SetTimeout == nil {
		t.Errorf("%+v", x.got)
	}
	ids := map[string]bool{}
	for _, h := range x.headers {
		ids[h.Get("e2b-delivery-id")] = h.Get("e2b-webhook-id") == one.ID
	}
	if len(ids) != len(want)+maxAttempts-1 {
		t.Errorf("%d deliveries have %d ids", len(want)+maxAttempts-1, len(ids))
	}
	d.hooks.wg.Wait()

	list := func(query string) (types []string) {
		status, text, _ := ask(t, d, "GET", "/events/sandboxes"+query, "")
		var all []event
		if status != http.StatusOK || json.Unmarshal([]byte(text), &all) != nil {
			t.Fatalf("%s: %d %s", query, status, text)
		}
		for _, e := range all {
			types = append(types, strings.TrimPrefix(e.Type, "sandbox.lifecycle."))
		}
		return types
	}
	stop()
	<-recorded
	for query, want := range map[string][]string{
		"": {"killed", "resumed", "paused", "updated", "created"}, "/" + s.SandboxID + "?orderAsc=true&limit=2&offset=1": {"updated", "paused"}, "/other": nil,
		"?types=sandbox.lifecycle.created&types=sandbox.lifecycle.killed": {"killed", "created"},
	} {
		if got := list(query); !slices.Equal(got, want) {
			t.Errorf("%s: %v", query, got)
		}
	}

	if status, _, _ := ask(t, d, "DELETE", "/events/webhooks/"+one.ID, ""); status != http.StatusOK {
		t.Errorf("delete: %d", status)
	}
	if status, text, _ := ask(t, d, "GET", "/events/webhooks", ""); status != http.StatusOK || strings.Contains(text, one.ID) || !strings.Contains(text, away.ID) {
		t.Errorf("%d %s", status, text)
	}
	created(t, d, `{"templateID":"web"}`)
	d.hooks.wg.Wait()
	if got := x.types(); len(got) != len(want) {
		t.Errorf("a removed webhook got %v", got)
	}
}

// Of all nodes that notice the end of a sandbox, one reports it.
func TestEndIsReportedOnce(t *testing.T) {
	b := &apitest.Backend{}
	d := newServer(t, b)
	s := created(t, d, `{"templateID":"web"}`)
	other := newTable(d.o.Notes)
	if err := other.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, err1 := other.change(t.Context(), s.SandboxID, func(s *sandbox) { s.Gone = true })
	if err1 != nil || !one.Gone {
		t.Fatal(err1)
	}
	<-d.events // created
	if status, text, _ := ask(t, d, "DELETE", "/sandboxes/"+s.SandboxID, ""); status != http.StatusNoContent || len(d.events) != 0 {
		t.Errorf("%d %s, %d events", status, text, len(d.events))
	}
	// If the other one has ended before it drops the note, the next reader does.
	if err := d.sandboxes.read(t.Context()); err != nil || d.sandboxes.count() != 0 {
		t.Errorf("%d sandboxes, %v", d.sandboxes.count(), err)
	}
	if notes, err := d.o.Notes.ListNotes(t.Context(), notePrefix); err != nil || len(notes) != 0 {
		t.Errorf("%v, %v", notes, err)
	}
}

// No event is posted into the networks of the host, also if a name leads there, and none in
// clear text to others.
func TestAddressesOfWebhooks(t *testing.T) {
	local := netip.MustParsePrefix("127.0.0.0/8")
	for address, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "::ffff:8.8.8.8": true,
		"127.0.0.1": false, "::1": false, "::ffff:127.0.0.1": false, "10.0.0.1": false, "172.17.0.1": false, "192.168.1.1": false, "169.254.169.254": false, "100.64.0.1": false,
		"0.0.0.0": false, "255.255.255.255": false, "224.0.0.1": false, "fe80::1%lo": false, "fd00:ec2::254": false, "::": false, "64:ff9b::a9fe:a9fe": false, "2002:a9fe:a9fe::": false,
		"2001::1": false, "::127.0.0.1": false, "198.18.0.1": false,
	} {
		ip := netip.MustParseAddr(address)
		if got := mayPost(ip, true, nil) == nil; got != want {
			t.Errorf("%s: %v", address, got)
		}
		if mayPost(ip, false, nil) == nil {
			t.Errorf("%s gets events in clear text", address)
		}
		if got := mayPost(ip, false, []netip.Prefix{local}) == nil; got != local.Contains(ip.Unmap()) {
			t.Errorf("%s with %s allowed: %v", address, local, got)
		}
	}
	d := newServer(t, &apitest.Backend{})
	x := &receiver{}
	srv := httptest.NewTLSServer(x)
	defer srv.Close()
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.hooks.post(webhook{URL: "https://localhost:" + u.Port()}, event{}); err == nil || !strings.Contains(err.Error(), "no public address") || len(x.headers) != 0 {
		t.Errorf("a name of this host: %v", err)
	}
}
