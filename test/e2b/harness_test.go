package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/sessions/session"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// built is the program under test.
var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func holdfastBinary(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "holdfast-bin-"); built.err == nil {
			built.path = filepath.Join(built.dir, "holdfast")
			built.err = labtest.Build(context.Background(), "holdfast/cmd/holdfast", built.path)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// apiKey is that of the tests, in the form that the SDKs check.
const apiKey = "e2b_0123456789abcdef0123456789abcdef01234567"

// node is an agent that serves the SDKs.
type node struct {
	t      *testing.T
	dir    string
	docker string
	sdks   string // host:port
	api    string
	keys   string // file
	quiet  bool   // the agent's log is not shown
	mounts string // of the template, YAML
	// extra and template are more YAML: of the configuration, and of the template.
	extra, template string
	apiKeys         string // more keys of the API, each behind a comma
	gateway         string // its address
	gatewayKeys     string // more keys of the gateway, each behind a comma
	// environment is what the SDKs need to reach the agent, beside the key.
	environment []string
	cmd         *exec.Cmd
	ended       chan struct{}
	errs        bytes.Buffer
}

// image imports busybox with the users of Debian, and with a server that every sandbox
// has.
func image(t *testing.T, e *lab.Engine) {
	t.Helper()
	img, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	img.Ref = "sandbox:latest"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n", "group": "root:x:0:\nuser:x:1000:\n",
	} {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		img.Files["/etc/"+name] = at
	}
	sudo := filepath.Join(dir, "sudo")
	if err := os.WriteFile(sudo, []byte("#!/bin/sh\nexec env -i PATH=$PATH \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	img.Files["/bin/sudo"] = sudo
	img.Env = []string{"PATH=/bin:/usr/bin"}
	// For a template that mounts the host's /usr.
	img.Links["/lib"], img.Links["/lib64"], img.Links["/bin/bash"], img.Links["/bin/python"] = "usr/lib", "usr/lib64", "/usr/bin/bash", "/usr/bin/python3"
	img.Command = []string{"/bin/sh", "-c", "mkdir -p /tmp /root /home/user /www; chmod 1777 /tmp; chown 1000:1000 /home/user; echo hello >/www/index.html; exec httpd -f -p 8080 -h /www"}
	if err := e.Import(t.Context(), img); err != nil {
		t.Fatal(err)
	}
}

// start starts an agent that the SDKs reach on loopback, without TLS.
func start(t *testing.T) *node { return startWith(t, "") }

func startWith(t *testing.T, mounts string) *node {
	t.Helper()
	n := newNode(t, labtest.FreePort(t))
	n.mounts = mounts
	n.environment = []string{"E2B_API_URL=http://" + n.sdks, "E2B_SANDBOX_URL=http://" + n.sdks}
	n.configure(fmt.Sprintf("e2b: {listen: %q, domain: %q, api_keys_file: %s, user: user}", n.sdks, "e2b.localhost:"+portOf(n.sdks), n.keys), "shell", "[9000]")
	n.run()
	return n
}

// newNode returns a node that does not run yet.
func newNode(t *testing.T, sdks string) *node {
	t.Helper()
	return newNodeOn(t, labtest.Engine(t), sdks)
}

func newNodeOn(t *testing.T, e *lab.Engine, sdks string) *node {
	t.Helper()
	image(t, e)
	n := &node{t: t, dir: t.TempDir(), docker: e.Host(), sdks: sdks, api: labtest.FreePort(t), gateway: labtest.FreePort(t)}
	n.keys = filepath.Join(n.dir, "keys")
	if err := os.WriteFile(n.keys, []byte("tests "+apiKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.cleanUp)
	return n
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

func (n *node) configure(sdks, template, ports string) {
	n.t.Helper()
	text := fmt.Sprintf(`
node: node-e2b
data_dir: %[1]s/data
run_dir: %[1]s/run
engine: {host: %[2]q}
gateway: {listen: %[3]q%[12]s}
api: {socket: %[1]s/s, listen: %[4]q%[11]s}
sessions: {networks: 2}
doctor: {enabled: false}
%[9]s
%[5]s
templates:
  - name: %[6]s
    image: sandbox:latest
    port: 8080
    ports: %[7]s
    mounts: [%[8]s]
    ready: {timeout: 2m}
%[10]s
`, n.dir, n.docker, n.gateway, n.api, sdks, template, ports, n.mounts, n.extra, n.template, n.apiKeys, n.gatewayKeys)
	if err := os.WriteFile(filepath.Join(n.dir, "holdfast.yaml"), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// run starts the agent, and returns when it serves.
func (n *node) run() {
	n.t.Helper()
	n.cmd = exec.Command(holdfastBinary(n.t), "agent", "--config", filepath.Join(n.dir, "holdfast.yaml"))
	n.cmd.Stderr = &n.errs
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // its output says why
		close(ended)
	}(n.cmd, n.ended)
	poll.Until(n.t, "the agent serves", func() bool {
		select {
		case <-n.ended:
			n.t.Fatalf("the agent ended:\n%s", &n.errs)
		default:
		}
		res, err := http.Get("http://" + n.api + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// cleanUp ends the agent, which kills the sessions.
func (n *node) cleanUp() {
	if n.cmd == nil || n.cmd.Process == nil {
		return
	}
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.ended:
	case <-time.After(time.Minute):
		n.t.Error("the agent did not end")
		_ = n.cmd.Process.Kill()
	}
	if n.t.Failed() && !n.quiet {
		n.t.Logf("the agent:\n%s", &n.errs)
	}
	e, err := docker.Open(context.Background(), docker.Config{Host: n.docker})
	if err != nil {
		n.t.Fatal(err)
	}
	defer e.Close()
	left, err := e.List(context.Background(), map[string]string{session.LabelNode: "node-e2b"})
	for _, c := range left {
		err = errors.Join(err, e.Remove(context.Background(), c.ID))
	}
	if err != nil {
		n.t.Error(err)
	}
}

// client calls the agent.
func (n *node) client() *client.Client {
	n.t.Helper()
	c, err := client.New(client.Options{Socket: filepath.Join(n.dir, "s")})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(c.Close)
	return c
}

// python runs a program with the newest SDK, and returns its output.
func (n *node) python(program string) string {
	n.t.Helper()
	return n.pythonWith(pythonSDKs()[0], program)
}

func (n *node) pythonWith(s sdk, program string) string {
	n.t.Helper()
	return n.program("PYTHONPATH="+s.need(n.t), "python3", "-c", program)
}

// javascriptWith is pythonWith for Node.js.
func (n *node) javascriptWith(s sdk, program string) string {
	n.t.Helper()
	// A module finds others in directories above its own.
	dir := filepath.Join(s.need(n.t), "node_modules", ".tests")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "program.mjs")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		n.t.Fatal(err)
	}
	return n.program("NODE_NO_WARNINGS=1", "node", file)
}

// program runs a program that uses the SDKs, and returns its output.
func (n *node) program(environment, name string, args ...string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(append(os.Environ(), n.environment...), "E2B_API_KEY="+apiKey, "PYTHONDONTWRITEBYTECODE=1", environment)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		n.t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	return out.String()
}
