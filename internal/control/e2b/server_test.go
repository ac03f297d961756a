package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/api/client"
	"holdfast/test/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "e2b_0123456789abcdef0123456789abcdef01234567"

// newServer returns a server to an agent's API, which serves b.
func newServer(t *testing.T, b *apitest.Backend, networks ...netip.Prefix) *Server {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- api.Serve(ctx, l, api.New(b.Parts(), api.Options{Admin: true}), slog.New(slog.DiscardHandler))
	}()
	agent, err := client.New(client.Options{Socket: filepath.Join(dir, "s")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		agent.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(dir, "keys")
	if err := os.WriteFile(file, []byte("tests "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{
		Domain: "e2b.test:8443", KeysFile: file, User: "root", Templates: []Template{{Name: "web", Port: 80}, {Name: "saved", Port: 80, Pauses: true}},
		Agent: agent, Notes: memstore.New(100), Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
		Node: "node-1", WebhookNetworks: networks,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.end()
		d.hooks.wg.Wait()
	})
	return d
}

// ask sends a request to the control API, and returns the status and the answer.
func ask(t *testing.T, d *Server, method, path, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	r := httptest.NewRequest(method, "http://api.e2b.test"+path, strings.NewReader(body))
	r.Header.Set("X-API-Key", key)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Code, w.Body.String(), w.Header()
}

func created(t *testing.T, d *Server, body string, header ...string) (s shown) {
	t.Helper()
	status, text, _ := ask(t, d, "POST", "/v2/sandboxes", body, header...)
	if status != http.StatusCreated || json.Unmarshal([]byte(text), &s) != nil {
		t.Fatalf("create: %d %s", status, text)
	}
	return s
}

func TestSandboxes(t *testing.T) {
	b := &apitest.Backend{}
	d := newServer(t, b)
	one := created(t, d, `{"templateID":"base","metadata":{"a":"1"}}`, "Idempotency-Key", "k1")
	if again := created(t, d, `{"templateID":"base"}`, "Idempotency-Key", "k1"); again != one || one.TemplateID != "web" || one.EnvdAccessToken == "" {
		t.Errorf("%+v, then %+v", one, again)
	}
	two := created(t, d, `{"templateID":"saved","timeout":100}`)
	if two.SandboxID == one.SandboxID {
		t.Error("two sandboxes have one id")
	}
	for _, c := range []struct {
		method, path, body, text string
		status                   int
	}{
		{"POST", "/sandboxes", `{"templateID":"none"}`, "there is no template", 404},
		{"POST", "/sandboxes", `{"templateID":"web","timeout":86401}`, "86400", 400},
		{"POST", "/sandboxes", `{"templateID":"web","timeout":-1}`, "timeout", 400},
		{"POST", "/sandboxes", `{"templateID":"web","autoPause":true}`, "cannot be paused", 400},
		{"POST", "/sandboxes", `{"templateID":"web","allow_internet_access":false}`, "does not offer", 400},
		{"POST", "/sandboxes", `{"templateID":"web","network":{"denyOut":["1.1.1.1"]}}`, "does not offer", 400},
		{"POST", "/sandboxes", `{"templateID":"web","envVars":{"A=":"b"}}`, "not a name", 400},
		{"POST", "/sandboxes", `{"templateID":"web","metadata":{"a":"` + strings.Repeat("x", 70_000) + `"}}`, "at most", 400},
		{"POST", "/sandboxes", `{`, "JSON", 400},
		{"GET", "/sandboxes/nothing", "", "does not exist", 404},
		{"GET", "/sandboxes/../../x", "", "does not offer", 501},
		{"POST", "/sandboxes/" + one.SandboxID + "/fork", "{}", "cannot be copied", 400},
		{"POST", "/sandboxes/" + one.SandboxID + "/fork", `{"count":101}`, "from 1 to 100", 400},
		{"POST", "/sandboxes/" + one.SandboxID + "/snapshots", "{}", "cannot be copied", 400},
		{"POST", "/sandboxes/" + one.SandboxID + "/snapshots", `{"memory":false}`, "does not offer", 501},
		{"POST", "/sandboxes/none/fork", "{}", "does not exist", 404},
		{"GET", "/snapshots?limit=0", "", "limit", 400},
		{"DELETE", "/templates/web", "", "does not offer", 501},
		{"GET", "/volumes", "", "volumes", 501},
		{"GET", "/sandboxes/" + one.SandboxID + "/metrics", "", `"cpuUsedPct":`, 200},
		{"GET", "/sandboxes/" + one.SandboxID + "/metrics?start=1&end=2", "", "[]", 200},
		{"GET", "/sandboxes/" + one.SandboxID + "/metrics?start=2&end=1", "", "after", 400},
		{"GET", "/sandboxes/" + one.SandboxID + "/metrics?start=x", "", "start", 400},
		{"GET", "/sandboxes/nothing/metrics", "", "does not exist", 404},
		{"GET", "/sandboxes/metrics?sandbox_ids=" + one.SandboxID + ",nothing", "", `{"sandboxes":{"` + one.SandboxID + `":{"timestamp"`, 200},
		{"GET", "/sandboxes/metrics", "", "from 1 to 100", 400},
		{"GET", "/sandboxes/" + one.SandboxID + "/logs?limit=1", "", `"line":"line 1"}]`, 200},
		{"GET", "/v2/sandboxes/" + one.SandboxID + "/logs?direction=backward&limit=1", "", `"message":"line 3"`, 200},
		{"GET", "/v2/sandboxes/" + one.SandboxID + "/logs?search=2", "", `"message":"line 2"`, 200},
		{"GET", "/v2/sandboxes/" + one.SandboxID + "/logs?level=error", "", `{"logs":[]}`, 200},
		{"GET", "/v2/sandboxes/" + one.SandboxID + "/logs?cursor=99999999999999", "", `{"logs":[]}`, 200},
		{"GET", "/v2/sandboxes/" + one.SandboxID + "/logs?level=loud", "", "level", 400},
		{"GET", "/events/sandboxes?limit=101", "", "limit", 400},
		{"GET", "/events/sandboxes?types=x", "", "types", 400},
		{"GET", "/events/webhooks/none", "", "does not exist", 404},
		{"POST", "/events/webhooks", hook("https://127.0.0.1/x"), "no public address", 400},
		{"POST", "/events/webhooks", hook("http://example.org/x"), "https", 400},
		{"POST", "/events/webhooks", hook("https://u:p@example.org/x"), "without a user", 400},
		{"POST", "/events/webhooks", `{"name":"n","url":"https://example.org","signatureSecret":"s","events":["x"]}`, "no events", 400},
		{"POST", "/events/webhooks", `{"name":"n","url":"https://example.org","events":["sandbox.lifecycle.killed"]}`, "signatureSecret", 400},
		{"POST", "/sandboxes/" + one.SandboxID + "/pause", "{}", "cannot be paused", 400},
		{"POST", "/sandboxes/" + two.SandboxID + "/pause", `{"memory":false}`, "does not offer", 501},
		{"POST", "/sandboxes/" + one.SandboxID + "/timeout", `{}`, "missing", 400},
		{"GET", "/v2/sandboxes?state=dead", "", "state", 400},
	} {
		if status, text, _ := ask(t, d, c.method, c.path, c.body); status != c.status && status != http.StatusTemporaryRedirect || status == c.status && !strings.Contains(text, c.text) {
			t.Errorf("%s %s %.60s: %d %s", c.method, c.path, c.body, status, text)
		}
	}
	if status, text, _ := ask(t, d, "GET", "/v2/sandboxes", "", "X-API-Key", key+"0"); status != http.StatusUnauthorized || strings.Contains(text, key) {
		t.Errorf("a wrong key: %d %s", status, text)
	}
	if n := d.sandboxes.count(); n != 2 {
		t.Errorf("%d sandboxes are known after refused requests", n)
	}
}

// Pages of a list have each sandbox once, in either order.
func TestListPages(t *testing.T) {
	d := newServer(t, &apitest.Backend{})
	for i := range 5 {
		created(t, d, fmt.Sprintf(`{"templateID":"web","metadata":{"n":"%d","odd":"%v"}}`, i, i%2 == 1))
	}
	pages := func(query string) (got []string) {
		for next := ""; ; {
			status, text, h := ask(t, d, "GET", "/v2/sandboxes?limit=2&"+query+"&nextToken="+url.QueryEscape(next), "")
			var page []listed
			if status != http.StatusOK || json.Unmarshal([]byte(text), &page) != nil {
				t.Fatalf("%d %s", status, text)
			}
			for _, s := range page {
				got = append(got, s.Metadata["n"])
			}
			if next = h.Get("X-Next-Token"); next == "" {
				return got
			}
		}
	}
	for query, want := range map[string]string{
		"": "4 3 2 1 0", "order=asc": "0 1 2 3 4", "metadata=" + url.QueryEscape("odd=true"): "3 1", "state=paused": "", "template=web&state=running,paused": "4 3 2 1 0", "template=saved": "",
	} {
		if got := strings.Join(pages(query), " "); got != want {
			t.Errorf("%s: %s", query, got)
		}
	}
}

func TestEndsOfSandboxes(t *testing.T) {
	b := &apitest.Backend{}
	d := newServer(t, b)
	killed, paused, kept := created(t, d, `{"templateID":"web"}`), created(t, d, `{"templateID":"saved","autoPause":true}`), created(t, d, `{"templateID":"web"}`)
	for _, id := range []string{killed.SandboxID, paused.SandboxID} {
		if status, text, _ := ask(t, d, "POST", "/sandboxes/"+id+"/timeout", `{"timeout":0}`); status != http.StatusNoContent {
			t.Fatalf("%d %s", status, text)
		}
	}
	if status, text, _ := ask(t, d, "POST", "/sandboxes/"+kept.SandboxID+"/refreshes", `{"duration":1}`); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	d.endDue(t.Context())
	if err := d.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	var page []listed
	if _, text, _ := ask(t, d, "GET", "/v2/sandboxes", ""); json.Unmarshal([]byte(text), &page) != nil {
		t.Fatal(text)
	}
	for _, s := range page {
		states[s.SandboxID] = s.State
	}
	if len(states) != 2 || states[paused.SandboxID] != "paused" || states[kept.SandboxID] != "running" {
		t.Errorf("%v", states)
	}
	if status, _, _ := ask(t, d, "GET", "/sandboxes/"+killed.SandboxID, ""); status != http.StatusNotFound {
		t.Errorf("the killed one: %d", status)
	}
	if status, text, _ := ask(t, d, "POST", "/v2/sandboxes/"+paused.SandboxID+"/connect", `{"timeout":60}`); status != http.StatusCreated {
		t.Errorf("resumed: %d %s", status, text)
	}
	// A session that ended by itself is forgotten after a while.
	if _, err := b.StopSession(t.Context(), holdfast.SessionKey(kept.SandboxID)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.sandboxes.change(t.Context(), kept.SandboxID, func(s *sandbox) { s.Started = time.Now().Add(-forgetAfter - time.Second) }); err != nil {
		t.Fatal(err)
	}
	if err := d.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.reconcile(t.Context()); err != nil || d.sandboxes.count() != 1 {
		t.Errorf("%d sandboxes are known, %v", d.sandboxes.count(), err)
	}
}

// A start that fails leaves nothing.
func TestFailedStart(t *testing.T) {
	b := &apitest.Backend{}
	d := newServer(t, b)
	b.SetFault(holdfast.ErrEngine)
	if status, text, _ := ask(t, d, "POST", "/v2/sandboxes", `{"templateID":"web"}`); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, text)
	}
	b.SetFault(nil)
	d.endDue(t.Context())
	if status, text, _ := ask(t, d, "GET", "/v2/sandboxes", ""); status != http.StatusOK || strings.TrimSpace(text) != "[]" {
		t.Errorf("%d %s", status, text)
	}
}

func TestTarget(t *testing.T) {
	d := newServer(t, &apitest.Backend{})
	for _, c := range []struct {
		host, id, port, wantID string
		wantPort               int
	}{
		{"api.e2b.test", "", "", "", 0},
		{"127.0.0.1:7073", "", "", "", 0},
		{"49983-abc.e2b.test:8443", "", "", "abc", 49983},
		{"80-ABC.E2B.test", "", "", "abc", 80},
		{"80-abc.other.test", "", "", "", 0},
		{"0-abc.e2b.test", "", "", "", 0},
		{"70000-abc.e2b.test", "", "", "", 0},
		{"127.0.0.1", "abc", "49983", "abc", 49983},
		{"127.0.0.1", "abc", "80", "", 0}, // a page cannot choose its origin
		{"80-abc.e2b.test", "other", "49983", "abc", 80},
	} {
		r := httptest.NewRequest("GET", "http://"+c.host+"/", nil)
		r.Header.Set(idHeader, c.id)
		r.Header.Set(portHeader, c.port)
		if id, port := d.target(r); id != c.wantID || port != c.wantPort {
			t.Errorf("%s with %s: %s, %d", c.host, c.id, id, port)
		}
	}
}

// The signature of a path is for that path, user, access and time only.
func TestSignature(t *testing.T) {
	q := url.Values{"path": {"a"}, "username": {"u"}}
	// echo -n a:read:u:token | openssl dgst -sha256 -binary | base64
	const want = "v1_lw8RMUgk71972vj5sBtBbLraPpXIa+u0if/IAJvdBxI"
	all := map[string]bool{signature("token", "read", q): true}
	for _, other := range []string{signature("token", "write", q), signature("other", "read", q), signature("token", "read", url.Values{"path": {"b"}, "username": {"u"}}),
		signature("token", "read", url.Values{"path": {"a"}, "username": {"u"}, "signature_expiration": {"1"}})} {
		if all[other] {
			t.Errorf("%s is not for one access only", other)
		}
		all[other] = true
	}
	if got := signature("token", "read", q); got != want {
		t.Errorf("%s", got)
	}
	if inTime(url.Values{"signature_expiration": {"1"}}) == nil || inTime(url.Values{"signature_expiration": {"x"}}) == nil {
		t.Error("an expired signature is accepted")
	}
}
