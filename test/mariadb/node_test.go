package mariadb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/control/api"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// example is the directory of the example.
const example = "../../examples/mariadb"

// node is an agent with the example's configuration, and a directory for its data.
type node struct {
	t       *testing.T
	binary  string
	socket  string
	docker  string
	srv     string // /srv/mariadb of the example
	outputs outputs
}

// startNode builds the image and the program, and starts an agent until the test's end.
func startNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{
		t: t, binary: filepath.Join(dir, "holdfast"), socket: filepath.Join(dir, "run", "s"),
		docker: labtest.Engine(t).Host(), srv: filepath.Join(dir, "srv"),
	}
	if err := labtest.Build(t.Context(), "holdfast/cmd/holdfast", n.binary); err != nil {
		t.Fatal(err)
	}
	n.must(filepath.Join(example, "image.sh"))
	if err := os.MkdirAll(n.srv, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the database is not root
		t.Fatal(err)
	}
	n.write("first.sql", n.read(example, "first.sql"))
	config := filepath.Join(dir, "holdfast.yaml")
	text := fmt.Sprintf("data_dir: %s/data\nrun_dir: %[1]s/run\nengine: {host: %q}\ngateway: {listen: 127.0.0.1:0}\napi: {socket: %s, listen: \"\"}\n%s",
		dir, n.docker, n.socket, strings.ReplaceAll(n.read(example, "holdfast.yaml"), "/srv/mariadb", n.srv))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run(config)
	return n
}

// run starts the agent and returns when it answers.
func (n *node) run(config string) {
	n.t.Helper()
	cmd := exec.Command(n.binary, "agent", "--config", config)
	cmd.Stdout, cmd.Stderr = &n.outputs, &n.outputs
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }() // this test ignores its exit code
	n.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
		case <-time.After(time.Minute):
			n.t.Error("the agent did not end within a minute")
			_ = cmd.Process.Kill()
			<-ended
		}
		if n.t.Failed() {
			n.t.Logf("the agent's output:\n%s", n.outputs.String())
		}
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if n.holdfast("session", "ls").Run() == nil {
			return
		}
		if time.Now().After(end) {
			n.t.Fatal("the agent did not answer within a minute")
		}
	}
}

// holdfast is a command for the agent.
func (n *node) holdfast(args ...string) *exec.Cmd {
	cmd := exec.Command(n.binary, args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+n.socket)
	return cmd
}

// must runs a command that must succeed and returns its output.
func (n *node) must(name string, args ...string) string {
	n.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "HOLDFAST_SOCKET="+n.socket, "DOCKER_HOST="+n.docker)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		n.t.Fatalf("%s %v: %v\n%s%s", name, args, err, &out, &errs)
	}
	return out.String()
}

// session returns the session's record, as `holdfast session show` prints it.
func (n *node) session(key string) (api.Session, error) {
	out, err := n.holdfast("session", "show", key, "--json").Output()
	if err != nil {
		return api.Session{}, err
	}
	var s api.Session
	return s, json.Unmarshal(out, &s)
}

// database creates the directory for a database's data.
func (n *node) database(key string) {
	n.t.Helper()
	dir := filepath.Join(n.srv, key)
	if err := os.Mkdir(dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Chown(dir, 999, 999); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) write(name, text string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.srv, name), []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) read(path ...string) string {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(b)
}

// outputs collects the output of an agent. Any goroutine may read it.
type outputs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *outputs) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *outputs) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
