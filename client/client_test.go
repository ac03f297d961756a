package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/client"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent serves a backend on a unix socket until the function it returns is called.
func agent(b *apitest.Backend, dir string) (socket string, stop func()) {
	socket = filepath.Join(dir, "holdfast.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := slog.New(slog.DiscardHandler)
	go func() { ended <- api.Serve(ctx, l, api.New(b.Parts(), api.Options{Admin: true}), log) }()
	return socket, func() {
		cancel()
		if err := <-ended; err != nil {
			panic(err)
		}
	}
}

func newClient(t *testing.T, b *apitest.Backend) (*client.Client, context.Context) {
	t.Helper()
	socket, stop := agent(b, t.TempDir())
	c, err := client.New(client.Options{Socket: socket, Program: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		stop()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return c, ctx
}

// notifier closes written at its first Write.
type notifier struct {
	io.Writer
	once    sync.Once
	written chan struct{}
}

func (n *notifier) Write(p []byte) (int, error) {
	n.once.Do(func() { close(n.written) })
	return n.Writer.Write(p)
}

// A session's life and its commands.
func TestClient(t *testing.T) {
	c, ctx := newClient(t, &apitest.Backend{})
	if err := c.Ready(ctx); err != nil {
		t.Error(err)
	}
	if v, err := c.Version(ctx); err != nil || v.Node != "n1" {
		t.Errorf("%+v, %v", v, err)
	}
	if s, err := c.StartSession(ctx, "alice", "web"); err != nil || s.State != holdfast.Ready || s.Template != "web" {
		t.Errorf("%+v, %v", s, err)
	}
	if all, err := c.Sessions(ctx); err != nil || len(all) != 1 || all[0].Key != "alice" {
		t.Errorf("%+v, %v", all, err)
	}
	var out, log bytes.Buffer
	if code, err := c.Exec(ctx, "alice", []string{"echo", "hi"}, client.Streams{Stdout: &out}); err != nil || code != 0 || out.String() != "hi\n" {
		t.Errorf("%d, %v, %q", code, err, &out)
	}
	out.Reset()
	sizes := make(chan client.Size)
	shown := &notifier{Writer: &out, written: make(chan struct{})}
	go func() {
		<-shown.written // a size that the command has not seen is replaced by the next one
		sizes <- client.Size{Rows: 40, Cols: 100}
	}()
	code, err := c.Exec(ctx, "alice", []string{"size"}, client.Streams{Stdout: shown, Terminal: &client.Size{Rows: 30, Cols: 90}, Resize: sizes})
	if err != nil || code != 0 || !strings.Contains(out.String(), "30") || !strings.Contains(out.String(), "100") {
		t.Errorf("a terminal: %d, %v, %q", code, err, &out)
	}
	if err := c.Logs(ctx, "alice", client.LogOptions{Tail: -1}, &log); err != nil || log.Len() == 0 {
		t.Errorf("%v, %q", err, &log)
	}
	started, err := c.StartCommand(ctx, "alice", []string{"wait"}, false)
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	var last client.Position
	code, err = c.Attach(ctx, "alice", started.ID, 0, client.Streams{Stdout: &out}, func(p client.Position) {
		if last = p; p.Offset > 0 {
			if err := c.SignalCommand(ctx, "alice", started.ID, "TERM"); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
				t.Error(err)
			}
		}
	})
	if err != nil || code != 128+15 || out.String() != "waiting\n" || last.Offset != 8 {
		t.Errorf("%d, %v, %q, %+v", code, err, &out, last)
	}
	if all, err := c.Commands(ctx, "alice"); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if r, err := c.SuspendSession(ctx, "alice"); err != nil || r.Key != "alice" {
		t.Errorf("%+v, %v", r, err)
	}
	if s, err := c.ResumeSession(ctx, "alice"); err != nil || s.Memory != holdfast.Restored {
		t.Errorf("%+v, %v", s, err)
	}
	wakeAt := time.Now().Add(time.Hour).Truncate(time.Second)
	if s, err := c.WakeSession(ctx, "alice", wakeAt); err != nil || !s.WakeAt.Equal(wakeAt) {
		t.Errorf("%+v, %v", s, err)
	}
	if r, err := c.StopSession(ctx, "alice"); err != nil || len(r.Dead) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if all, err := c.Nodes(ctx); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	var h struct{ Holds []any }
	if err := c.Call(ctx, "GET", "/v1/protect", nil, &h); err != nil || h.Holds == nil {
		t.Errorf("%+v, %v", h, err)
	}
}

// Errors have the agent's code, hint and log, and the sentinels of the root package.
func TestErrors(t *testing.T) {
	b := &apitest.Backend{}
	c, ctx := newClient(t, b)
	_, err := c.StartSession(ctx, "broken", "")
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "boot_failed" || !strings.Contains(e.Log, "panic") || holdfast.HintOf(err) != "look at the template's command" {
		t.Errorf("%+v", err)
	}
	if _, err := c.Session(ctx, "a/../../nodes"); err == nil || err.(*client.Error).Code != "bad_key" {
		t.Errorf("a bad key: %v", err)
	}
	if code, err := c.Exec(ctx, "bob", []string{"echo"}, client.Streams{}); code != -1 || !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("%d, %v", code, err)
	}
	for _, code := range api.Codes() {
		wire, ours := (&api.Error{Code: code}).Unwrap(), (&client.Error{Code: string(code)}).Unwrap()
		if wire != ours && !errors.Is(wire, context.Canceled) && !errors.Is(wire, context.DeadlineExceeded) {
			t.Errorf("%s stands for %v, and not %v", code, wire, ours)
		}
	}
	web := httptest.NewServer(nil)
	defer web.Close()
	other, err := client.New(client.Options{URL: web.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Ready(ctx); err == nil || !strings.Contains(err.Error(), "not a holdfast agent") {
		t.Errorf("another server: %v", err)
	}
	for _, url := range []string{"host:7071", "ftp://host", "http://host:7071"} {
		if _, err := client.New(client.Options{URL: url, Token: "0123456789abcdef"}); err == nil {
			t.Errorf("%s was taken", url)
		}
	}
}

// A Session has all that the API sends.
func TestSessionIsWhole(t *testing.T) {
	ours, wire := reflect.TypeFor[client.Session](), reflect.TypeFor[api.Session]()
	for i := range wire.NumField() {
		f := wire.Field(i)
		if got, ok := ours.FieldByName(f.Name); !ok || got.Type != f.Type || got.Tag != f.Tag {
			t.Errorf("%s is %v %s", f.Name, got.Type, got.Tag)
		}
	}
	if b, err := json.Marshal(client.Session{}); err != nil || !json.Valid(b) {
		t.Error(err)
	}
}

// A program of another module can import the package, without the network.
func TestImportFromAnotherModule(t *testing.T) {
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go .*$`).Find(mod)
	for name, text := range map[string]string{
		"go.mod":  "module example.com/other\n\n" + string(version) + "\n\nrequire holdfast v0.0.0\n\nreplace holdfast => " + root + "\n",
		"main.go": "package main\n\nimport \"holdfast/client\"\n\nfunc main() {\n\tc, err := client.New(client.Options{})\n\tif err != nil {\n\t\tpanic(err)\n\t}\n\tc.Close()\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	socket, stop := agent(&apitest.Backend{}, dir) // a stand-in for `holdfast agent`
	defer stop()

	c, err := client.New(client.Options{Socket: socket, Program: "example"})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	ctx := context.Background()
	if _, err := c.StartSession(ctx, "alice", ""); err != nil {
		panic(err)
	}
	code, err := c.Exec(ctx, "alice", []string{"echo", "hello"}, client.Streams{Stdout: os.Stdout})
	if err != nil {
		panic(err)
	}
	fmt.Println("exit code", code)
	_, err = c.Session(ctx, "bob")
	fmt.Println(errors.Is(err, holdfast.ErrNotFound))
	// Output:
	// hello
	// exit code 0
	// true
}
