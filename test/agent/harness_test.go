package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/control/api"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/containerd"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/sessions/session"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) {
	if act := os.Getenv(nextEnv); act != "" {
		os.Exit(playNext(act))
	}
	code := labtest.Main(m)
	if binary.dir != "" {
		os.RemoveAll(binary.dir)
	}
	os.Exit(code)
}

// binary is the program under test, built by the first test that needs it.
var binary struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func holdfastBinary(t *testing.T) string {
	t.Helper()
	binary.once.Do(func() {
		if binary.dir, binary.err = os.MkdirTemp("", "holdfast-bin-"); binary.err != nil {
			return
		}
		binary.path = filepath.Join(binary.dir, "holdfast")
		binary.err = labtest.Build(context.Background(), "holdfast/cmd/holdfast", binary.path)
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}

// host is a node: a configuration, and the agent that runs with it, if any.
type host struct {
	t       *testing.T
	dir     string
	gateway string // host:port
	apiTCP  string // host:port
	socket  string
	docker  string
	// stopTimeout is gateway.stop_timeout of the configuration; "" is the default.
	gatewayKeys string // more keys of the gateway, each behind a comma
	stopTimeout string
	keys        string             // of the engine in the configuration; "" is Docker at docker
	direct      *containerd.Config // how a test reaches a containerd; nil: Docker
	node        string
	engine      engine.Engine
	cmd         *exec.Cmd
	ended       chan struct{}
	served      bool         // an agent has been ready
	program     string       // what the agent is started from; "" is the program under test itself
	manager     *manager     // nil: the agent runs by itself
	pool        string       // that start waits for; see eachPool
	out         bytes.Buffer // output of the agent; read it after the agent's end
	errs        bytes.Buffer
}

// template is the template of every host: the test server on a bridge.
const template = `
  - name: web
    image: ` + labtest.TestServer + `
    port: 8080
    ready: {http: /healthz, timeout: 2m}
`

// newHost creates a configuration for one test. extra is additional YAML; templates must be
// its last key.
func newHost(t *testing.T, extra string) *host {
	t.Helper()
	if labtest.OnContainerd() {
		return hostOnContainerd(t, labtest.SharedContainerd(t), extra)
	}
	return newHostOn(t, labtest.Engine(t).Host(), extra)
}

func newHostOn(t *testing.T, dockerHost, extra string) *host {
	t.Helper()
	h := newNode(t, dockerHost, "")
	h.configure(extra)
	return h
}

// newNode creates a host without a configuration. suffix distinguishes the hosts of a test.
func newNode(t *testing.T, dockerHost, suffix string) *host {
	t.Helper()
	h := &host{
		t: t, dir: t.TempDir(), gateway: labtest.FreePort(t), apiTCP: labtest.FreePort(t), docker: dockerHost,
		node: "node-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())) + suffix,
	}
	h.socket = filepath.Join(h.dir, "run", "holdfast.sock")
	if len(h.socket) > 100 { // sun_path has 108 bytes
		short, err := os.MkdirTemp("", "hf")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(short) })
		h.socket = filepath.Join(short, "s")
	}
	t.Cleanup(h.cleanUp)
	return h
}

// configure writes the configuration file.
func (h *host) configure(extra string) {
	h.t.Helper()
	h.configureWith(h.docker, extra)
}

// configureEngine writes it with another engine.
func (h *host) configureEngine(engine string) {
	h.t.Helper()
	h.configureWith(engine, "")
}

func (h *host) configureWith(engine, extra string) {
	h.t.Helper()
	if !strings.Contains(extra, "doctor:") { // each agent would load its BPF programs
		extra = "doctor: {enabled: false}\n" + extra
	}
	if !strings.Contains(extra, "templates:") {
		extra += "\ntemplates:" + template
	}
	text := fmt.Sprintf(`
node: %s
data_dir: %s/data
run_dir: %s/run
engine: {%s}
gateway: {listen: "%s", park_time: 2m, stop_timeout: %s%s}
api: {socket: %s, listen: "%s"}
%s`, h.node, h.dir, h.dir, cmp.Or(h.keys, fmt.Sprintf("host: %q", engine)), h.gateway,
		cmp.Or(h.stopTimeout, "5s"), h.gatewayKeys, h.socket, h.apiTCP, extra)
	if err := os.WriteFile(h.configFile(), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) configFile() string { return filepath.Join(h.dir, "holdfast.yaml") }

// start starts an agent and returns when it serves.
func (h *host) start() {
	h.t.Helper()
	h.out.Reset()
	h.errs.Reset()
	h.launch(&h.out, &h.errs)
	h.ready()
	h.poolFull()
}

// startTo is start with all output to w.
func (h *host) startTo(w *os.File) {
	h.t.Helper()
	h.launch(w, w)
	h.ready()
}

func (h *host) ready() {
	h.t.Helper()
	end := time.Now().Add(time.Minute)
	for time.Now().Before(end) {
		if res, err := http.Get("http://" + h.apiTCP + "/readyz"); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				h.served = true
				return
			}
		}
		select {
		case <-h.ended:
			h.t.Fatalf("the agent ended at once:\n%s%s", &h.out, &h.errs)
		case <-time.After(10 * time.Millisecond):
		}
	}
	h.t.Fatal("the agent was not ready within a minute")
}

// launch starts an agent.
func (h *host) launch(out, errs io.Writer) {
	h.t.Helper()
	h.cmd = exec.Command(cmp.Or(h.program, holdfastBinary(h.t)), "agent", "--config", h.configFile())
	if h.manager != nil {
		h.manager.manage(h.cmd)
	}
	h.cmd.Stdout, h.cmd.Stderr = out, errs
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as an agent on its own
	err := h.cmd.Start()
	for _, f := range h.cmd.ExtraFiles {
		f.Close() // the agent has its own copies
	}
	if err != nil {
		h.t.Fatal(err)
	}
	ended := make(chan struct{})
	h.ended = ended
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait() // the code is in its ProcessState
		close(ended)
	}(h.cmd)
}

// wait returns the agent's exit code once it has ended.
func (h *host) wait() int {
	h.t.Helper()
	select {
	case <-h.ended:
	case <-time.After(time.Minute):
		h.t.Fatal("the agent did not end within a minute")
	}
	return h.cmd.ProcessState.ExitCode()
}

func (h *host) signal(s os.Signal) {
	h.t.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		h.t.Fatal(err)
	}
}

// cleanUp ends the agent and removes the node's containers.
func (h *host) cleanUp() {
	if h.cmd != nil {
		_ = h.cmd.Process.Kill()
		<-h.ended
		if h.t.Failed() {
			h.t.Logf("the output of %s's agent:\n%s%s", h.node, &h.out, &h.errs)
		}
	}
	h.endDeadman()
	if !h.served {
		return // it made no container
	}
	h.api()
	// The engine may create a container only now that the agent requested just before its
	// kill. A later test could not create a container of the same name.
	for empty := 0; empty < 5; empty++ {
		var removing sync.WaitGroup
		for _, c := range append(h.containers(), h.holders()...) {
			removing.Go(func() {
				if err := h.engine.Remove(context.Background(), c.ID); err != nil {
					h.t.Error(err)
				}
			})
			empty = 0
		}
		removing.Wait()
		time.Sleep(20 * time.Millisecond)
	}
	h.engine.Close()
}

// api returns the test's client of the engine.
func (h *host) api() engine.Engine {
	h.t.Helper()
	if h.engine != nil {
		return h.engine
	}
	var err error
	if h.direct != nil {
		h.engine, err = containerd.Open(context.Background(), *h.direct)
	} else {
		h.engine, err = docker.Open(context.Background(), docker.Config{Host: h.docker})
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return h.engine
}

// containers returns the node's containers, in any state.
func (h *host) containers() []engine.Container {
	h.t.Helper()
	list, err := h.api().List(context.Background(), map[string]string{session.LabelNode: h.node})
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

// running returns the running containers by key. Warm containers without a session have no
// key.
func (h *host) running() map[string][]string {
	h.t.Helper()
	out := map[string][]string{}
	for _, c := range h.containers() {
		if !c.Running() {
			continue
		}
		if key := h.keyOf(c); key != "" {
			out[key] = append(out[key], c.ID)
		}
	}
	return out
}

// result is the output and the exit code of a command.
type result struct {
	out, err string
	code     int
}

// cli runs holdfast against the host's agent.
func (h *host) cli(args ...string) result { return h.cliFor(time.Minute, args...) }

// cliFor is cli with another time limit.
func (h *host) cliFor(limit time.Duration, args ...string) result {
	h.t.Helper()
	program := holdfastBinary(h.t) // the first call builds it
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+h.socket, "DOCKER_HOST="+h.docker)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("holdfast %v: %v", args, err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// must is cli for commands that must succeed.
func (h *host) must(args ...string) string {
	h.t.Helper()
	r := h.cli(args...)
	if r.code != 0 {
		h.t.Fatalf("holdfast %v: exit code %d\n%s%s", args, r.code, r.out, r.err)
	}
	return r.out
}

// sessions returns the agent's list of sessions.
func (h *host) sessions() []api.Session {
	h.t.Helper()
	var list []api.Session
	if err := json.Unmarshal([]byte(h.must("session", "ls", "--json")), &list); err != nil {
		h.t.Fatal(err)
	}
	return list
}

// get sends a request to the gateway and returns status, header and body.
func (h *host) get(path string) (*http.Response, string) { return h.getWith(path, nil) }

func (h *host) getWith(path string, header http.Header) (*http.Response, string) {
	h.t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequest("GET", "http://"+h.gateway+path, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	res, err := client.Do(req)
	if err != nil {
		h.t.Errorf("GET %s: %v", path, err)
		return &http.Response{Header: http.Header{}}, ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Errorf("GET %s: %v", path, err)
	}
	return res, string(body)
}

// open boots the session and fails the test if it does not answer.
func (h *host) open(key string) {
	h.t.Helper()
	if res, body := h.get("/s/" + key + "/"); res.StatusCode != http.StatusOK {
		h.t.Errorf("session %s: %s\n%s", key, res.Status, body)
	}
}

// wantError checks that stderr is one error: line and one hint: line with the
// given parts.
func wantError(t *testing.T, r result, code int, errorHas, hintHas string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(r.err), "\n")
	last := lines[max(0, len(lines)-2):]
	if r.code != code || len(last) != 2 || !strings.HasPrefix(last[0], "error: ") || !strings.HasPrefix(last[1], "hint: ") ||
		!strings.Contains(last[0], errorHas) || !strings.Contains(last[1], hintHas) {
		t.Errorf("exit code %d (want %d), stderr:\n%s\nwant an error with %q and a hint with %q", r.code, code, r.err, errorHas, hintHas)
	}
}
