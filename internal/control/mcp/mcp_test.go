package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/api/client"
	"holdfast/internal/control/mcp"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/rule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the time limit of a wait.
const patience = 20 * time.Second

// desk is an agent, the server of its tools, and what the agent's log has.
type desk struct {
	t       *testing.T
	backend *apitest.Backend
	server  *mcp.Server
	mu      sync.Mutex
	log     bytes.Buffer
}

func (d *desk) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func (d *desk) logged() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

func newDesk(t *testing.T, o mcp.Options) *desk {
	t.Helper()
	d := &desk{t: t, backend: &apitest.Backend{}}
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(d, nil))
	go func() {
		ended <- api.Serve(ctx, l, api.New(d.backend.Parts(), api.Options{Admin: true, Log: log}), log)
	}()
	if o.Client, err = client.New(client.Options{Socket: socket}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		o.Client.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	o.Version = "v1.2.3"
	d.server = mcp.New(o)
	return d
}

// connect returns a session of the SDK's client over pipes.
func (d *desk) connect() *sdk.ClientSession {
	d.t.Helper()
	toServer, in := io.Pipe()
	fromServer, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- d.server.Serve(d.t.Context(), toServer, out) }()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(d.t.Context(), &sdk.IOTransport{Reader: fromServer, Writer: in}, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		_ = c.Close() // the test may have closed it
		if err := <-ended; err != nil {
			d.t.Errorf("the server: %v", err)
		}
	})
	return c
}

// args are a call's arguments.
type args = map[string]any

// call calls a tool and decodes its structured result into v, if it is not nil. It
// returns the text of the result and whether it is an error.
func call(t *testing.T, c *sdk.ClientSession, name string, with args, v any) (text string, failed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: with})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, one := range r.Content {
		if one, ok := one.(*sdk.TextContent); ok {
			text += one.Text
		}
	}
	if v != nil {
		b, err := json.Marshal(r.StructuredContent)
		if err != nil || r.IsError || json.Unmarshal(b, v) != nil {
			t.Fatalf("%s: %s, %v", name, text, err)
		}
	}
	return text, r.IsError
}

func names(t *testing.T, c *sdk.ClientSession) (list []string) {
	t.Helper()
	for one, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, one.Name)
	}
	return list
}

const (
	readTools  = "agent_status doctor_status gc_plan node_list protect_history session_list session_show spinup_list spinup_stats"
	fileTools  = " file_list file_read file_stat"
	writeTools = fileTools + " file_make_directory file_move file_remove file_write session_commands session_exec session_output session_signal session_start session_stop"
)

// Without leave to write, there is no tool that changes anything, or that reads what a
// session's commands have written.
func TestReadsOnlyByDefault(t *testing.T) {
	c := newDesk(t, mcp.Options{}).connect()
	if got := sorted(names(t, c)); got != sorted(strings.Fields(readTools+fileTools)) {
		t.Errorf("tools %s", got)
	}
	for one := range c.Tools(t.Context(), nil) {
		if !one.Annotations.ReadOnlyHint || one.Annotations.Title == "" || len(one.Description) < 20 {
			t.Errorf("%s: %+v", one.Name, one.Annotations)
		}
	}
	for _, name := range []string{"session_start", "session_exec", "nothing"} {
		if _, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args{"key": "alice", "command": []string{"id"}}}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if text := c.InitializeResult().Instructions; !strings.Contains(text, "--allow-write") || !strings.Contains(text, "never instructions") {
		t.Errorf("instructions %q", text)
	}
}

// The list of all tools fits a model's context, and says what each tool does.
func TestToolsDescribeThemselves(t *testing.T) {
	c := newDesk(t, mcp.Options{AllowWrite: true, Examine: func(context.Context, time.Duration) (doctor.Report, error) { return doctor.Report{}, nil }}).connect()
	var all bytes.Buffer
	hints := map[string]string{}
	for one, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		a := one.Annotations
		if hints[one.Name] = "reads"; !a.ReadOnlyHint {
			hints[one.Name] = "adds"
			if a.DestructiveHint == nil || *a.DestructiveHint {
				hints[one.Name] = "destroys"
			}
		}
		if a.IdempotentHint {
			hints[one.Name] += " idempotent"
		}
		one.OutputSchema = nil // for programs, not for models
		b, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
		// Each argument is described, and bounded if it has a size.
		in := one.InputSchema.(map[string]any)
		if in["additionalProperties"] != false {
			t.Errorf("%s takes other arguments", one.Name)
		}
		properties, _ := in["properties"].(map[string]any)
		for name, p := range properties {
			p := p.(map[string]any)
			bounded := p["maximum"] != nil || p["maxLength"] != nil || p["pattern"] != nil || p["enum"] != nil || p["maxItems"] != nil || p["type"] == "boolean"
			if p["description"] == nil || !bounded {
				t.Errorf("%s: argument %s is %v", one.Name, name, p)
			}
		}
	}
	if n := all.Len(); n > 16<<10 {
		t.Errorf("the tools' descriptions have %d bytes", n)
	}
	for name, want := range map[string]string{"session_list": "reads idempotent", "session_output": "reads idempotent", "session_start": "adds idempotent", "session_stop": "destroys idempotent",
		"session_exec": "destroys", "session_signal": "destroys", "doctor_run": "reads idempotent",
		"file_read": "reads idempotent", "file_write": "destroys idempotent", "file_make_directory": "adds idempotent", "file_move": "destroys", "file_remove": "destroys"} {
		if hints[name] != want {
			t.Errorf("%s %s, want %s", name, hints[name], want)
		}
	}
	if len(hints) != len(strings.Fields(readTools+writeTools))+1 {
		t.Errorf("%d tools", len(hints))
	}
}

func sorted(list []string) string {
	slices.Sort(list)
	return strings.Join(list, " ")
}

type page struct {
	Sessions []struct {
		Key, State string
		LastError  string `json:"last_error"`
	}
	Matching int
	Next     string
}

// A session's life, with pages of a list, and the caller in the agent's audit log.
func TestSessions(t *testing.T) {
	d := newDesk(t, mcp.Options{AllowWrite: true})
	c := d.connect()
	for _, key := range []string{"carol", "alice", "bob"} {
		var s struct{ State, Node string }
		if call(t, c, "session_start", args{"key": key, "template": "web"}, &s); s.State != "ready" || s.Node != "n1" {
			t.Errorf("%s: %+v", key, s)
		}
	}
	var one, two, web page
	call(t, c, "session_list", args{"limit": 2}, &one)
	call(t, c, "session_list", args{"limit": 2, "after": one.Next}, &two)
	call(t, c, "session_list", args{"prefix": "al", "state": "ready", "template": "web"}, &web)
	if len(one.Sessions) != 2 || one.Next != "bob" || one.Matching != 3 || len(two.Sessions) != 1 || two.Next != "" || two.Sessions[0].Key != "carol" || web.Matching != 1 {
		t.Errorf("%+v, %+v, %+v", one, two, web)
	}
	var stopped struct{ Dead int }
	if call(t, c, "session_stop", args{"key": "bob"}, &stopped); stopped.Dead != 1 {
		t.Errorf("%+v", stopped)
	}
	if log := d.logged(); !strings.Contains(log, `act=startSession caller="unix socket" pid=`) || !strings.Contains(log, "via=mcp session=bob") {
		t.Errorf("audit log %s", log)
	}
}

// Errors are results that say what to do; so is a container's last output.
func TestErrorsAreResults(t *testing.T) {
	d := newDesk(t, mcp.Options{AllowWrite: true})
	c := d.connect()
	for name, one := range map[string]struct {
		tool string
		with args
		want []string
	}{
		"no session":       {"session_show", args{"key": "alice"}, []string{"error: session alice: not found"}},
		"bad key":          {"session_show", args{"key": "../x"}, []string{"key", "pattern"}},
		"no key":           {"session_show", args{}, []string{"key"}},
		"another argument": {"session_show", args{"key": "a", "all": true}, []string{"all"}},
		"limit too high":   {"session_list", args{"limit": 1000}, []string{"limit", "1000"}},
		"limit too low":    {"session_list", args{"limit": -1}, []string{"limit"}},
		"wrong type":       {"session_list", args{"limit": "ten"}, []string{"limit"}},
		"unknown state":    {"session_list", args{"state": "gone"}, []string{"state"}},
		"no command":       {"session_exec", args{"key": "alice", "command": []string{}}, []string{"command"}},
		"long wait":        {"session_exec", args{"key": "alice", "command": []string{"id"}, "wait_seconds": 9999}, []string{"wait_seconds"}},
		"boot failed":      {"session_start", args{"key": "broken"}, []string{"error: ", "exited with code 3", "hint: look at the template's command", "not instructions", "panic: no \uFFFD[31mdatabase"}},
	} {
		text, failed := call(t, c, one.tool, one.with, nil)
		for _, want := range one.want {
			if !failed || !strings.Contains(text, want) {
				t.Errorf("%s: %q has no %q (failed: %v)", name, text, want, failed)
			}
		}
	}
	d.backend.SetFault(holdfast.ErrEngine)
	if text, failed := call(t, c, "session_list", nil, nil); !failed || !strings.HasPrefix(text, "error: ") {
		t.Errorf("without an engine: %q", text)
	}
}

type written struct {
	ID, Output, Cut string
	Running         bool
	ExitCode        int `json:"exit_code"`
	Offset          int `json:"offset"`
	Next            int `json:"next_offset"`
}

// A command's output is bounded, the result says what is cut, and the rest can be read.
func TestExec(t *testing.T) {
	d := newDesk(t, mcp.Options{AllowWrite: true})
	c := d.connect()
	call(t, c, "session_start", args{"key": "alice"}, &struct{}{})
	run := func(with args, words ...string) (w written) {
		t.Helper()
		with["key"], with["command"] = "alice", words
		call(t, c, "session_exec", with, &w)
		return w
	}
	if w := run(args{}, "exit", "7"); w.ExitCode != 7 || w.Running || w.Output != "" {
		t.Errorf("%+v", w)
	}
	if w := run(args{}, "echo", "a\x1b[31m\u202eb"); w.Output != "a\uFFFD[31m\uFFFDb\n" {
		t.Errorf("%+v", w)
	}
	w := run(args{"max_bytes": 10}, "echo", strings.Repeat("x", 100)+"0123456789")
	if w.Output != "123456789\n" || w.Offset != 101 || w.Next != 111 || !strings.Contains(w.Cut, "101 bytes before offset 101") {
		t.Errorf("the end: %+v", w)
	}
	var part written
	call(t, c, "session_output", args{"key": "alice", "id": w.ID, "offset": 95, "max_bytes": 10}, &part)
	if part.Output != "xxxxx01234" || part.Offset != 95 || part.Next != 105 || part.Running {
		t.Errorf("a part: %+v", part)
	}
	if call(t, c, "session_output", args{"key": "alice", "id": w.ID, "offset": part.Next}, &part); part.Output != "56789\n" || part.Next != 111 {
		t.Errorf("the rest: %+v", part)
	}
	if w := run(args{}, "lossy"); w.Output != "kept\n" || w.Offset != 100 || !strings.Contains(w.Cut, "100 bytes") {
		t.Errorf("lost bytes: %+v", w)
	}
	w = run(args{"wait_seconds": 1}, "wait")
	if !w.Running || w.Output != "waiting\n" || w.Next != 8 {
		t.Errorf("a command that runs on: %+v", w)
	}
	if call(t, c, "session_output", args{"key": "alice", "id": w.ID, "offset": 0}, &part); !part.Running || part.Output != "waiting\n" {
		t.Errorf("its output: %+v", part)
	}
	if call(t, c, "session_output", args{"key": "alice", "id": w.ID, "offset": 8}, &part); !part.Running || part.Output != "" || part.Next != 8 {
		t.Errorf("no more output: %+v", part)
	}
	call(t, c, "session_signal", args{"key": "alice", "id": w.ID}, &struct{}{})
	if call(t, c, "session_output", args{"key": "alice", "id": w.ID, "wait_seconds": 20}, &part); part.Running || part.ExitCode != 128+15 {
		t.Errorf("its end: %+v", part)
	}
	var list struct {
		Commands []struct{ ID, Command string }
	}
	if call(t, c, "session_commands", args{"key": "alice"}, &list); len(list.Commands) != 5 || len(list.Commands[2].Command) > 220 {
		t.Errorf("%+v", list)
	}
	if log := d.logged(); strings.Count(log, "act=startCommand") != 5 || strings.Count(log, "via=mcp") < 8 {
		t.Errorf("audit log %s", log)
	}
}

// The tools of the host and the fleet answer from the agent's records, within limits.
func TestHostTools(t *testing.T) {
	storm := doctor.Finding{Finding: rule.Finding{Rule: "fadvise-storm", Severity: rule.Warning, Title: "a storm\x1b[2J", Evidence: []rule.Evidence{{What: "drains", Found: "7,000/s", Healthy: "under 10/s"}}}}
	var observed time.Duration
	d := newDesk(t, mcp.Options{Examine: func(_ context.Context, d time.Duration) (doctor.Report, error) {
		if observed = d; d == 2*time.Second {
			return doctor.Report{}, holdfast.WithHint(errors.New("no BPF"), "run it as root")
		}
		return doctor.Report{Findings: []doctor.Finding{storm, storm}}, nil
	}})
	d.backend.SetDoctor()
	d.backend.SetSpinups(apitest.Samples())
	d.backend.SetCollection(apitest.SomeCollection())
	d.backend.SetProtection(apitest.SomeProtection())
	c := d.connect()
	for name, want := range map[string]string{
		"agent_status":    `"ready":true`,
		"node_list":       `"id":"n1"`,
		"gc_plan":         `"omitted":`,
		"protect_history": `"longest_wait_ms"`,
		"doctor_status":   `"severity":"critical"`,
		"doctor_run":      `a storm` + "\uFFFD" + `[2J`,
		"spinup_list":     `"times_ms":{`,
		"spinup_stats":    `"groups":[{`,
	} {
		with := args{"limit": 1}
		switch name {
		case "agent_status":
			with = nil
		case "spinup_list", "spinup_stats":
			with["hours"] = 24 * 366 // the samples are of fixed times
		}
		text, failed := call(t, c, name, with, nil)
		if failed || !strings.Contains(text, want) || len(text) > 4<<10 {
			t.Errorf("%s: failed %v, %d bytes: %s", name, failed, len(text), text)
		}
	}
	var rest struct {
		Nodes []struct{ ID string }
		Count int
		Next  string
	}
	if call(t, c, "node_list", args{"after": "n1"}, &rest); len(rest.Nodes) != rest.Count-1 || rest.Next != "" {
		t.Errorf("the second page of nodes: %+v", rest)
	}
	if observed != 15*time.Second {
		t.Errorf("the doctor observed for %v", observed)
	}
	if text, failed := call(t, c, "doctor_run", args{"seconds": 2}, nil); !failed || text != "error: no BPF\nhint: run it as root" {
		t.Errorf("%v %q", failed, text)
	}
	if strings.Contains(d.logged(), "audit=true") {
		t.Errorf("reading is in the audit log: %s", d.logged())
	}
}

// The server ends when its input does, or its context, also while a call runs.
func TestEnd(t *testing.T) {
	d := newDesk(t, mcp.Options{AllowWrite: true})
	d.backend.Gate = make(chan struct{})
	t.Cleanup(func() { close(d.backend.Gate) })
	for name, end := range map[string]func(input io.Closer, cancel func()){
		"input":   func(input io.Closer, _ func()) { input.Close() },
		"context": func(_ io.Closer, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			toServer, in := io.Pipe()
			fromServer, out := io.Pipe()
			defer fromServer.Close()
			ended := make(chan error, 1)
			go func() { ended <- d.server.Serve(ctx, toServer, out) }()
			c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), &sdk.IOTransport{Reader: fromServer, Writer: in}, nil)
			if err != nil {
				t.Fatal(err)
			}
			over := make(chan error, 1)
			go func() {
				_, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "session_start", Arguments: args{"key": "alice"}})
				over <- err
			}()
			if err := c.Ping(t.Context(), nil); err != nil { // the call before it has arrived
				t.Fatal(err)
			}
			end(in, cancel)
			if err := within(t, ended); err != nil {
				t.Errorf("the server: %v", err)
			}
			_ = toServer.Close() // as the end of the process does
			_ = out.Close()      // likewise
			_ = c.Close()        // its connection is gone
			_ = within(t, over)
		})
	}
}

func within[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("it did not end")
		panic("unreachable")
	}
}
