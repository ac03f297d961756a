package agent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// portTemplate has web servers on 8080 and 9000, and an echo on 5432 that clients of the
// gateway may not reach. The echo answers after the end of its input. The session is ready
// when all of them listen (port 5432 is 1538 in /proc).
const portTemplate = `
  - name: web
    image: ` + labtest.Busybox + `
    command:
      - sh
      - -c
      - |
        mkdir /www /other; echo own > /www/index.html; echo other $HOLDFAST_EPOCH > /other/index.html
        echo 'echo "echo $(cat)"' > /echo
        httpd -p 9000 -h /other
        nc -ll -p 5432 -e sh /echo &
        until grep -qi ':1538 ' /proc/net/tcp /proc/net/tcp6; do sleep 0.01; done
        exec httpd -f -p 8080 -h /www
    port: 8080
    ports: [9000, 9001]
    ready: {timeout: 2m}
`

// forwards is `holdfast session forward` in a process of its own.
type forwards struct {
	t    *testing.T
	cmd  *exec.Cmd
	errs *strings.Builder
	at   []string // local addresses
}

func (h *host) forward(key string, ports ...string) *forwards {
	h.t.Helper()
	f := &forwards{t: h.t, cmd: exec.Command(holdfastBinary(h.t), append([]string{"session", "forward", key}, ports...)...), errs: &strings.Builder{}}
	f.cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+h.socket)
	f.cmd.Stderr = f.errs
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = f.cmd.Process.Kill() // it may have ended
		_ = f.cmd.Wait()         // likewise
	})
	lines := bufio.NewReader(out)
	for _, port := range ports {
		line, err := lines.ReadString('\n')
		_, remote, _ := strings.Cut(port, ":")
		local, ok := strings.CutSuffix(strings.TrimPrefix(line, "Forwarding "), fmt.Sprintf(" -> %s:%s\n", key, remote))
		if err != nil || !ok {
			_ = f.cmd.Wait()
			h.t.Fatalf("forward: %q, %v, %s", line, err, f.errs)
		}
		f.at = append(f.at, local)
	}
	return f
}

// interrupt ends it as Ctrl-C does, and returns its exit code and errors.
func (f *forwards) interrupt() (int, string) {
	f.t.Helper()
	if err := f.cmd.Process.Signal(syscall.SIGINT); err != nil {
		f.t.Fatal(err)
	}
	_ = f.cmd.Wait() // its error is the exit code
	return f.cmd.ProcessState.ExitCode(), f.errs.String()
}

// echoed sends text to an echo, ends the input, and returns the answer, or the connection's error.
func echoed(t *testing.T, at, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		return err.Error() // of a closed port, if the reset arrives before connect(2) returns
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return err.Error() // if the reset arrives later
	}
	_ = c.(*net.TCPConn).CloseWrite() // after a reset it fails, and the reader gets the reset
	b, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// page returns what a web server answers.
func page(t *testing.T, at string) string {
	t.Helper()
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + at + "/")
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	return strings.TrimSpace(readAll(t, res.Body))
}

// byHost asks the gateway for a host name.
func (h *host) byHost(name string) (int, string) {
	h.t.Helper()
	req, err := http.NewRequest("GET", "http://"+h.gateway+"/", nil)
	if err != nil {
		h.t.Fatal(err)
	}
	req.Host = name
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode, strings.TrimSpace(readAll(h.t, res.Body))
}

func TestPortsOfASession(t *testing.T) {
	h := newHost(t, "")
	h.gatewayKeys = ", domain: sessions.test, paths: true"
	h.configure("templates:" + portTemplate)
	h.start()

	// A request to a port boots the session.
	if res, body := h.get("/s/alice/p/9000/"); res.StatusCode != 200 || !strings.HasPrefix(body, "other ") {
		t.Errorf("%s %s", res.Status, body)
	}
	if res, body := h.get("/s/alice/"); res.StatusCode != 200 || strings.TrimSpace(body) != "own" {
		t.Errorf("%s %s", res.Status, body)
	}
	for name, want := range map[string]string{"9000-alice": "other ", "8080-alice": "own", "0-alice": "own", "alice": "own", "9000-7-x": "other ", "0-9000-x": "own"} {
		if status, body := h.byHost(name + ".sessions.test"); status != 200 || !strings.HasPrefix(body, want) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	// Ports that are not listed, and one on which nothing listens.
	for path, want := range map[string]string{"/s/alice/p/5432/": "404 no template allows port 5432", "/s/alice/p/9001/": "502 session alice, port 9001"} {
		status, text, _ := strings.Cut(want, " ")
		if res, body := h.get(path); !strings.HasPrefix(res.Status, status) || !strings.Contains(body, text) {
			t.Errorf("%s: %s %s", path, res.Status, body)
		}
	}
}

func TestForwardedPorts(t *testing.T) {
	h := newHost(t, "templates:"+portTemplate)
	h.start()
	f := h.forward("bob", ":5432", ":9000", ":1")
	if got := echoed(t, f.at[0], "hello"); got != "echo hello\n" {
		t.Errorf("the echo answers %q", got)
	}
	first := page(t, f.at[1])
	if !strings.HasPrefix(first, "other ") {
		t.Errorf("the page is %q", first)
	}
	if got := echoed(t, f.at[2], ""); !strings.Contains(got, "reset") {
		t.Errorf("a closed port answers %q", got)
	}

	// An open connection keeps the session in use, and ends with it. The next one starts it.
	open, err := net.Dial("tcp", f.at[0])
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	fmt.Fprint(open, "never answered")
	poll.Until(t, "the connection is counted", func() bool { return h.sessions()[0].Connections == 1 })
	if got := h.metric("holdfast_forwarded_connections"); got != "1" {
		t.Errorf("%s connections are counted", got)
	}
	h.must("session", "stop", "bob")
	if b, err := io.ReadAll(open); err == nil && len(b) > 0 {
		t.Errorf("the connection of a stopped session answers %q", b)
	}
	if second := page(t, f.at[1]); !strings.HasPrefix(second, "other ") || second == first {
		t.Errorf("the page is %q after %q", second, first)
	}
	code, errs := f.interrupt()
	if code != 0 || !strings.Contains(errs, "error: port 1: session bob: nothing listens on port 1\nhint: ") || !strings.Contains(errs, "error: port 5432: ") {
		t.Errorf("exit code %d: %s", code, errs)
	}

	// Bad requests.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	wantError(t, h.cli("session", "forward", "bob", port), 1, "address already in use", ":"+port+" takes a free")
	for _, bad := range []string{"0", "65536", "x", "1:2:3", "1:", "-1:80"} {
		wantError(t, h.cli("session", "forward", "bob", "--", bad), 2, "is not a port", "")
	}
	wantError(t, h.cli("session", "forward", "bob", "80", "--address", "example.org"), 2, "not an IP address", "")
	wantError(t, h.cli("session", "forward", "Bob", "80"), 2, "not a session key", "")
}

// Any node reaches every port of a session, through the gateway and with forward.
func TestPortsInAFleet(t *testing.T) {
	labtest.NeedLong(t, "it starts a fleet; TestPortsOfASessionElsewhere and TestPassesForwardedConnections pass connections on between two servers")
	hosts := newFleet(t, 2, patient, "templates:"+portTemplate)
	hosts[0].must("session", "start", "alice")
	at, _ := owner(t, hosts, "alice")
	for _, h := range []*host{at, besides(hosts, at)[0]} {
		if res, body := h.get("/s/alice/p/9000/"); res.StatusCode != 200 || !strings.HasPrefix(body, "other ") {
			t.Errorf("%s: %s %s", h.node, res.Status, body)
		}
		if res, body := h.get("/s/alice/p/5432/"); res.StatusCode != 404 {
			t.Errorf("%s: %s %s", h.node, res.Status, body)
		}
		f := h.forward("alice", ":5432")
		if got := echoed(t, f.at[0], "hello"); got != "echo hello\n" {
			t.Errorf("%s: the echo answers %q", h.node, got)
		}
		if code, errs := f.interrupt(); code != 0 || errs != "" {
			t.Errorf("%s: exit code %d: %s", h.node, code, errs)
		}
	}
}
