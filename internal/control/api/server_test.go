package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
)

// codeOf returns the code of an error reply, and checks its status.
func codeOf(t *testing.T, r reply) api.Code {
	t.Helper()
	var body api.ErrorBody
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		t.Fatalf("status %d, body %q: %v", r.status, r.body, err)
	}
	if body.Error.Code.Status() != r.status {
		t.Errorf("code %s came with status %d", body.Error.Code, r.status)
	}
	return body.Error.Code
}

func TestRequestsThatAreRefused(t *testing.T) {
	b := &apitest.Backend{}
	s := serve(t, b, api.Options{Admin: true})
	upgrade := []string{"Connection: Upgrade", "Upgrade: holdfast-exec/1"}
	for _, tt := range []struct {
		name, method, path, body string
		headers                  []string
		want                     api.Code
	}{
		{"unknown path", "GET", "/v1/nothing", "", nil, api.CodeNotFound},
		{"state change by GET", "GET", "/v1/sessions/alice/start", "", nil, api.CodeBadMethod},
		{"drain by GET", "GET", "/v1/node/drain", "", nil, api.CodeBadMethod},
		{"delete", "DELETE", "/v1/sessions/alice", "", nil, api.CodeBadMethod},
		{"bad key", "GET", "/v1/sessions/Alice", "", nil, api.CodeBadKey},
		{"key with a slash", "GET", "/v1/sessions/a%2Fb", "", nil, api.CodeBadKey},
		{"bad key to start", "POST", "/v1/sessions/-a/start", "", nil, api.CodeBadKey},
		{"no such session", "GET", "/v1/sessions/alice", "", nil, api.CodeNotFound},
		{"unknown field", "POST", "/v1/sessions/alice/start", `{"tempalte":"x"}`, nil, api.CodeBadRequest},
		{"wrong type", "POST", "/v1/sessions/alice/start", `{"template":7}`, nil, api.CodeBadRequest},
		{"two values", "POST", "/v1/sessions/alice/start", `{} {}`, nil, api.CodeBadRequest},
		{"no JSON", "POST", "/v1/sessions/alice/start", `template=x`, nil, api.CodeBadRequest},
		{"form", "POST", "/v1/sessions/alice/start", `{}`, []string{"Content-Type: application/x-www-form-urlencoded"}, api.CodeBadMedia},
		{"text", "POST", "/v1/sessions/alice/start", `{}`, []string{"Content-Type: text/plain"}, api.CodeBadMedia},
		{"field of a request without fields", "POST", "/v1/node/uncordon", `{"now":true}`, nil, api.CodeBadRequest},
		{"too large", "POST", "/v1/sessions/alice/start", `{"template":"` + strings.Repeat("x", api.MaxBody) + `"}`, nil, api.CodeTooLarge},
		{"another site", "POST", "/v1/sessions/alice/start", `{}`, []string{"Sec-Fetch-Site: cross-site"}, api.CodeCrossOrigin},
		{"another origin", "POST", "/v1/sessions/alice/start", `{}`, []string{"Origin: https://example.com"}, api.CodeCrossOrigin},
		{"unknown parameter", "GET", "/v1/sessions?state=ready", "", nil, api.CodeBadRequest},
		{"unknown parameter of a change", "POST", "/v1/node/drain?budget=1s", "", nil, api.CodeBadRequest},
		{"cordon by GET", "GET", "/v1/node/cordon", "", nil, api.CodeBadMethod},
		{"another node's drain, alone", "POST", "/v1/nodes/n2/drain", "", nil, api.CodeNotFound},
		{"replace nothing", "POST", "/v1/replace", `{}`, nil, api.CodeBadRequest},
		{"replace by two ways", "POST", "/v1/replace", `{"all":true,"node":"n1"}`, nil, api.CodeBadRequest},
		{"replace a bad key", "POST", "/v1/replace", `{"keys":["A"]}`, nil, api.CodeBadKey},
		{"replace what is not there", "POST", "/v1/replace", `{"keys":["alice"]}`, nil, api.CodeNotFound},
		{"replace on no node", "POST", "/v1/replace", `{"node":"n7"}`, nil, api.CodeNotFound},
		{"too many at a time", "POST", "/v1/replace", `{"all":true,"parallel":65}`, nil, api.CodeBadRequest},
		{"too long for one", "POST", "/v1/replace", `{"all":true,"timeout_ms":1e10}`, nil, api.CodeBadRequest},
		{"bad limit", "GET", "/v1/replacements?limit=-1", "", nil, api.CodeBadRequest},
		{"bad tail", "GET", "/v1/sessions/alice/logs?tail=all", "", nil, api.CodeBadRequest},
		{"bad follow", "GET", "/v1/sessions/alice/logs?follow=maybe", "", nil, api.CodeBadRequest},
		{"budget below 0", "POST", "/v1/node/drain", `{"budget_ms":-1}`, nil, api.CodeBadRequest},
		{"budget too long", "POST", "/v1/node/drain", `{"budget_ms":1e9}`, nil, api.CodeBadRequest},
		{"exec of nothing", "POST", "/v1/sessions/alice/exec", `{"command":[]}`, upgrade, api.CodeBadRequest},
		{"exec without upgrade", "POST", "/v1/sessions/alice/exec", `{"command":["ls"]}`, nil, api.CodeBadRequest},
		{"no metrics here", "GET", "/metrics", "", nil, api.CodeNotFound},
	} {
		r := call(t, s, tt.method, tt.path, tt.body, tt.headers...)
		if got := codeOf(t, r); got != tt.want {
			t.Errorf("%s: code %s, want %s: %s", tt.name, got, tt.want, r.body)
		}
	}
	if have, err := b.Sessions(t.Context()); len(have) > 0 || err != nil {
		t.Errorf("a refused request started %v (%v)", have, err)
	}
	nodes, err := b.Nodes(t.Context())
	if err != nil || nodes[0].Draining {
		t.Errorf("a refused request drained the node (%v)", err)
	}
}

// The same requests at listeners with different options show the access rules.
func TestAccess(t *testing.T) {
	const secret, looks = "a-token-of-some-length", "another-token-that-only-looks"
	both := tokens(t, "old 0123456789abcdef\nops "+secret+"\n", "# dashboards\n"+looks+"\n")
	reading := tokens(t, "", "grafana "+looks)
	calls := []struct{ method, path, body string }{
		{"GET", "/v1/sessions", ""},
		{"GET", "/metrics", ""},
		{"GET", "/v1/openapi.json", ""},
		{"GET", "/v1/replacements", ""},
		{"GET", "/nowhere", ""},
		{"PUT", "/v1/sessions", ""},
		{"GET", "/v1/sessions/alice/logs", ""},
		{"POST", "/v1/sessions/alice/exec", `{"command":["echo"]}`},
		{"POST", "/v1/sessions/alice/start", ""},
		{"POST", "/v1/sessions/alice/stop", ""},
		{"POST", "/v1/node/drain", ""},
		{"POST", "/v1/node/uncordon", ""},
		{"POST", "/v1/node/cordon", ""},
		{"POST", "/v1/nodes/n1/drain", ""},
		{"POST", "/v1/nodes/n1/cordon", ""},
		{"POST", "/v1/nodes/n1/uncordon", ""},
		{"POST", "/v1/replace", `{"all":true}`},
		{"POST", "/v1/agent/stop", ""},
		{"GET", "/healthz", ""},
		{"GET", "/readyz", ""},
	}
	const reads, probes = 6, 18 // number of the first requests, and index of the first probe
	loopback := "Host: 127.0.0.1:7071"
	// let: the request passed the guard, with any result.
	let := func(i int) api.Code { return "" }
	only := func(c api.Code) func(int) api.Code {
		return func(i int) api.Code {
			if i >= probes {
				return ""
			}
			return c
		}
	}
	readOnly := func(i int) api.Code {
		if i < reads || i >= probes {
			return ""
		}
		return api.CodeReadOnly
	}
	for _, tt := range []struct {
		name    string
		o       api.Options
		headers []string
		want    func(int) api.Code
	}{
		{"unix socket", api.Options{Admin: true}, []string{"Host: agent"}, let},
		{"no token", api.Options{}, []string{loopback}, readOnly},
		{"no token, localhost", api.Options{}, []string{"Host: localhost"}, readOnly},
		{"no token, IPv6", api.Options{}, []string{"Host: [::1]:7071"}, readOnly},
		{"no token, own name", api.Options{Hosts: []string{"box.lan"}}, []string{"Host: BOX.lan:7071"}, readOnly},
		{"no token, another token sent", api.Options{}, []string{loopback, "Authorization: Bearer " + secret}, readOnly},
		{"rebound name", api.Options{}, []string{"Host: evil.example:7071"}, only(api.CodeBadHost)},
		{"rebound name like loopback", api.Options{}, []string{"Host: 127.0.0.1.evil.example"}, only(api.CodeBadHost)},
		{"other address", api.Options{}, []string{"Host: 192.0.2.1:7071"}, only(api.CodeBadHost)},
		{"token", api.Options{Tokens: both}, []string{"Host: box.example", "Authorization: Bearer " + secret}, let},
		{"token, none sent", api.Options{Tokens: both}, []string{loopback}, only(api.CodeUnauthorized)},
		{"token, wrong", api.Options{Tokens: both}, []string{loopback, "Authorization: Bearer " + secret + "x"}, only(api.CodeUnauthorized)},
		{"token, empty", api.Options{Tokens: both}, []string{loopback, "Authorization: Bearer "}, only(api.CodeUnauthorized)},
		{"older token", api.Options{Tokens: both}, []string{"Authorization: bearer 0123456789abcdef"}, let},
		{"token's name", api.Options{Tokens: both}, []string{"Authorization: Bearer ops"}, only(api.CodeUnauthorized)},
		{"line of the file", api.Options{Tokens: both}, []string{"Authorization: Bearer ops " + secret}, only(api.CodeUnauthorized)},
		{"reading token", api.Options{Tokens: both}, []string{"Authorization: Bearer " + looks}, readOnly},
		{"reading token alone", api.Options{Tokens: reading}, []string{"Authorization: Bearer " + looks}, readOnly},
		{"reading token alone, none sent", api.Options{Tokens: reading}, []string{loopback}, only(api.CodeUnauthorized)},
		{"a node", api.Options{Peer: func(*http.Request) holdfast.NodeID { return "n2" }}, []string{"Host: n1"}, let},
		{"a node of no name", api.Options{Peer: func(*http.Request) holdfast.NodeID { return "" }}, nil, func(int) api.Code { return api.CodeUnauthorized }},
		{"token as basic", api.Options{Tokens: both}, []string{loopback, "Authorization: Basic " + secret}, only(api.CodeUnauthorized)},
	} {
		tt.o.Metrics = http.NotFoundHandler()
		s := serve(t, &apitest.Backend{}, tt.o)
		for i, c := range calls {
			r := call(t, s, c.method, c.path, c.body, tt.headers...)
			got := api.Code("")
			switch r.status {
			case http.StatusUnauthorized, http.StatusForbidden, http.StatusMisdirectedRequest:
				got = codeOf(t, r)
			}
			if want := tt.want(i); got != want {
				t.Errorf("%s: %s %s: code %q, want %q: %d %s", tt.name, c.method, c.path, got, want, r.status, r.body)
			}
		}
	}
}

// A node gets the routes that nodes pass on to each other, and no other route of
// another node.
func TestPeersGetWhatIsPassedOn(t *testing.T) {
	s := serve(t, &apitest.Backend{}, api.Options{Metrics: http.NotFoundHandler(), Peer: func(*http.Request) holdfast.NodeID { return "n2" }})
	if r := call(t, s, "POST", "/v1/sessions/alice/start", ""); r.status != http.StatusOK {
		t.Fatalf("%d %s", r.status, r.body)
	}
	for route, there := range map[string]bool{
		"GET /v1/version": false, "GET /v1/sessions": false, "GET /v1/nodes": false, "GET /v1/openapi.json": false,
		"GET /healthz": false, "GET /readyz": false, "GET /metrics": false, "GET /v1/replacements": false,
		"POST /v1/node/drain": false, "POST /v1/node/cordon": false, "POST /v1/node/uncordon": false,
		"POST /v1/replace": false, "POST /v1/agent/stop": false,
		"GET /v1/sessions/alice": true, "POST /v1/sessions/alice/start": true,
		"POST /v1/nodes/n1/cordon": true, "GET /v1/nodes/n1/replacements": true,
		"POST /v1/nodes/n3/cordon": false, // of n3 only
	} {
		method, path, _ := strings.Cut(route, " ")
		if r := call(t, s, method, path, ""); (r.status < 300) != there || !there && codeOf(t, r) != api.CodeNotFound {
			t.Errorf("%s: %d %s", route, r.status, r.body)
		}
	}
}

func TestErrorsOnTheWire(t *testing.T) {
	boot := &holdfast.BootError{Key: "a", Phase: "create", Err: errors.New("no such image"), Log: "last words"}
	_, badKey := holdfast.ParseSessionKey("A")
	for _, tt := range []struct {
		err  error
		want api.Code
		is   error
	}{
		{fmt.Errorf("x: %w", holdfast.ErrNotFound), api.CodeNotFound, holdfast.ErrNotFound},
		{fmt.Errorf("x: %w", holdfast.ErrDraining), api.CodeDraining, holdfast.ErrDraining},
		{fmt.Errorf("x: %w", holdfast.ErrBusy), api.CodeBusy, holdfast.ErrBusy},
		{fmt.Errorf("x: %w", holdfast.ErrEngine), api.CodeEngineDown, holdfast.ErrEngine},
		{fmt.Errorf("x: %w", holdfast.ErrStore), api.CodeStoreDown, holdfast.ErrStore},
		{boot, api.CodeBootFailed, nil},
		{fmt.Errorf("x: %w", holdfast.WithHint(boot, "do this")), api.CodeBootFailed, nil},
		{&holdfast.BootError{Key: "a", Phase: "start", Err: holdfast.ErrEngine}, api.CodeEngineDown, holdfast.ErrEngine},
		{badKey, api.CodeBadKey, nil},
		{holdfast.WithHint(&holdfast.ElsewhereError{Owner: holdfast.Owner{Key: "a", Node: "n2"}}, "ask there"), api.CodeElsewhere, nil},
		{errors.New("anything"), api.CodeInternal, nil},
	} {
		got := api.ErrorOf(tt.err)
		if got.Code != tt.want {
			t.Errorf("%v has code %s, want %s", tt.err, got.Code, tt.want)
		}
		if got.Message != tt.err.Error() || got.Hint() != holdfast.HintOf(tt.err) {
			t.Errorf("%v became %q, hint %q", tt.err, got.Message, got.Hint())
		}
		if tt.is != nil && !errors.Is(got, tt.is) {
			t.Errorf("%v is not %v any more", got, tt.is)
		}
	}
	if got := api.ErrorOf(boot); got.Log != "last words" {
		t.Errorf("log is %q", got.Log)
	}
	for _, c := range api.Codes() {
		if c.Status() == http.StatusInternalServerError && c != api.CodeInternal {
			t.Errorf("%s has no status", c)
		}
	}
}

// A process that only has metrics serves them with the access rules of an agent, and
// has no other route.
func TestFiguresOnly(t *testing.T) {
	const looks = "a-token-that-only-looks"
	figures := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "figures 1\n") })
	for name, x := range map[string]struct {
		options api.Options
		headers []string
		want    api.Code // of /metrics
	}{
		"loopback":       {api.Options{}, []string{"Host: 127.0.0.1:7071"}, ""},
		"another name":   {api.Options{}, []string{"Host: evil.example.org"}, api.CodeBadHost},
		"no token":       {api.Options{Tokens: tokens(t, "", "grafana "+looks)}, nil, api.CodeUnauthorized},
		"with its token": {api.Options{Tokens: tokens(t, "", "grafana "+looks)}, []string{"Authorization: Bearer " + looks}, ""},
	} {
		x.options.Metrics = figures
		s := httptest.NewServer(api.NewMetrics(x.options))
		t.Cleanup(s.Close)
		r := call(t, s, "GET", "/metrics", "", x.headers...)
		if x.want == "" && (r.status != http.StatusOK || !strings.Contains(string(r.body), "figures 1")) || x.want != "" && codeOf(t, r) != x.want {
			t.Errorf("%s: %d, %s", name, r.status, r.body)
		}
		if r := call(t, s, "GET", "/healthz", "", x.headers...); r.status != http.StatusOK {
			t.Errorf("%s: healthz %d", name, r.status)
		}
		if x.want != "" {
			continue
		}
		for _, path := range []string{"/v1/sessions", "/v1/openapi.json", "/readyz", "/"} {
			if r := call(t, s, "GET", path, "", x.headers...); codeOf(t, r) != api.CodeNotFound {
				t.Errorf("%s: %s is there: %d", name, path, r.status)
			}
		}
	}
}

func TestUnreadyIsNotHealth(t *testing.T) {
	b := &apitest.Backend{}
	b.SetFault(errors.New("embedded store is starting"))
	s := serve(t, b, api.Options{})
	if r := call(t, s, "GET", "/healthz", ""); r.status != http.StatusOK {
		t.Errorf("healthz: %d", r.status)
	}
	r := call(t, s, "GET", "/readyz", "")
	if got := codeOf(t, r); got != api.CodeNotReady || r.header.Get("Retry-After") == "" {
		t.Errorf("readyz: %s, headers %v", got, r.header)
	}
}

// docs/api.md has every route and every code with its status.
func TestReferencePage(t *testing.T) {
	b, err := os.ReadFile("../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, rt := range api.RouteTable() {
		if !strings.Contains(page, rt.Path) {
			t.Errorf("the page has no %s %s", rt.Method, rt.Path)
		}
	}
	for _, c := range api.Codes() {
		row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| %d \\|.*`%s`", c.Status(), c))
		if !row.MatchString(page) {
			t.Errorf("the page has no %s with status %d", c, c.Status())
		}
	}
}

// At the limit, a new connection closes the one that has been without a request for
// longest. If all have a request, the new one is closed.
func TestConnectionsAreBounded(t *testing.T) {
	b := &apitest.Backend{}
	if _, err := b.StartSession(t.Context(), "alice", ""); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	log := slog.New(slog.DiscardHandler)
	go func() { ended <- api.ServeUpTo(ctx, 2, l, api.New(b.Parts(), api.Options{Admin: true}), log) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	// ask tells whether the server answers on a new connection.
	ask := func(path string) (net.Conn, bool) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n") // the server may have closed it
		n, _ := c.Read(make([]byte, 1))
		return c, n == 1
	}
	const endless = "/v1/sessions/alice/logs?follow=true"
	first, ok1 := ask("/healthz")
	_, ok2 := ask(endless)
	_, ok3 := ask("/healthz")
	if !ok1 || !ok2 || !ok3 {
		t.Fatalf("with room for two, one after the other was served: %v, %v, %v", ok1, ok2, ok3)
	}
	if _, err := io.Copy(io.Discard, first); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection without a request is not closed: %v", err)
	}
	last, ok := ask(endless)
	if !ok {
		t.Error("the connection without a request is not closed for a new one")
	}
	if _, ok := ask("/healthz"); ok {
		t.Error("three requests at once with room for two")
	}
	last.Close()
	for {
		if _, ok := ask("/healthz"); ok {
			return // the test's time limit also ends the loop
		}
	}
}

// crowd has more sessions than one request replaces.
type crowd struct{ *apitest.Backend }

func (c crowd) Parts() api.Parts {
	p := c.Backend.Parts()
	p.Sessions = c
	return p
}

func (crowd) Sessions(context.Context) ([]api.Session, error) {
	all := make([]api.Session, api.MaxReplaced+1)
	for i := range all {
		all[i].Owner = holdfast.Owner{Key: holdfast.SessionKey(fmt.Sprint(i)), Node: "n1", State: holdfast.Ready}
	}
	return all, nil
}

func TestReplacementsAreBounded(t *testing.T) {
	s := serve(t, crowd{&apitest.Backend{}}, api.Options{Admin: true})
	if got := codeOf(t, call(t, s, "POST", "/v1/replace", `{"all":true}`)); got != api.CodeBadRequest {
		t.Errorf("code %s", got)
	}
}
