package api_test

import (
	"bufio"
	"encoding/csv"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/test/poll"
)

func TestWeight(t *testing.T) {
	b := &apitest.Backend{}
	s := serve(t, b, api.Options{})
	if r := call(t, s, "GET", "/readyz", ""); r.body != `{"status":"ok","weight":73}`+"\n" {
		t.Errorf("without the parameter: %s", r.body)
	}
	if r := call(t, s, "GET", "/readyz?weight=1", ""); codeOf(t, r) != api.CodeBadRequest {
		t.Errorf("with a value: %d", r.status)
	}
	b.SetFault(errors.New("embedded store is starting"))
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /readyz?weight HTTP/1.1\r\nHost: h\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body) // up to the end of the connection
	if err != nil || res.Status != "503 0%" || res.Header.Get("Retry-After") == "" || !strings.Contains(string(body), string(api.CodeNotReady)) {
		t.Errorf("a node that is not ready: %s %v %q, %v", res.Status, res.Header, body, err)
	}
}

// TestHAProxyReadsTheWeight runs a real HAProxy with the configuration of docs/fleet.md.
func TestHAProxyReadsTheWeight(t *testing.T) {
	if testing.Short() {
		t.Skip("needs HAProxy")
	}
	b := &apitest.Backend{}
	s := httptest.NewTLSServer(api.New(b.Parts(), api.Options{Log: slog.New(slog.DiscardHandler)}))
	defer s.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```haproxy\n")
	text, _, _ = strings.Cut(text, "```")
	if !found {
		t.Fatal("the page has no configuration")
	}
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	text = strings.NewReplacer("bind :443", "bind 127.0.0.1:"+free(t), ":7071", ":"+port, "port 7071", "port "+port, "/etc/haproxy/holdfast-ca.pem", ca).Replace(text)
	text = regexp.MustCompile(`10\.0\.0\.\d+`).ReplaceAllString(text, host)
	text = regexp.MustCompile(`web-\d\.example\.org`).ReplaceAllString(text, "example.com") // the name in httptest's certificate
	stats := filepath.Join(dir, "stats")
	text = "global\n    stats socket " + stats + "\ndefaults\n    timeout connect 5s\n    timeout client 5s\n    timeout server 5s\n" + text
	// The checks' own listeners get ports that are free.
	for _, p := range []string{"9001", "9002", "9003"} {
		text = strings.ReplaceAll(text, p, free(t))
	}
	config := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd := exec.Command("haproxy", "-db", "-f", config)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("%s\n%s", text, log.String())
		}
	})
	want := func(what, state string) {
		t.Helper()
		poll.Until(t, what, func() bool {
			rows := servers(stats)
			for _, r := range rows {
				if r != state {
					return false
				}
			}
			return len(rows) == 3
		})
	}
	want("all nodes have their weight", "UP 73")
	b.SetFault(errors.New("the engine does not answer"))
	want("nodes that are not ready get no connections", "DOWN 0")
	b.SetFault(nil)
	want("ready nodes are back", "UP 73")
}

// servers returns state and weight of each server of the backend gateways.
func servers(stats string) (rows []string) {
	conn, err := net.Dial("unix", stats)
	if err != nil {
		return nil
	}
	defer conn.Close()
	fmt.Fprint(conn, "show stat\n")
	table, err := csv.NewReader(conn).ReadAll()
	if err != nil {
		return nil
	}
	const name, server, state, weight = 0, 1, 17, 18
	for _, r := range table {
		if r[name] == "gateways" && r[server] != "BACKEND" {
			word, _, _ := strings.Cut(r[state], " ")
			rows = append(rows, word+" "+r[weight])
		}
	}
	return rows
}

// free returns a TCP port on which nothing listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
