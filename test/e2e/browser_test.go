package e2e

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/agent"
	"holdfast/internal/control/config"
	"holdfast/internal/sessions/guardian"
	"holdfast/test/browser"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// patience bounds every wait against hanging. It is no measurement.
const patience = time.Minute

const screen = ".xterm-rows" // where the demo's page draws its terminal

// TestMain also runs the guardian's role of the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "guardian" {
		os.Exit(guardian.Main(os.Args[2], slog.New(slog.NewTextHandler(io.Discard, nil))))
	}
	os.Exit(labtest.Main(m))
}

// node is a running agent.
type node struct {
	url    string         // of the gateway
	api    string         // of the API and the dashboard
	keep   chan os.Signal // ends the agent without its containers
	drain  func()
	ended  chan error
	report holdfast.DrainReport // valid after the end
}

func start(t *testing.T, cfg config.Config) *node {
	t.Helper()
	n := &node{ended: make(chan error, 1), keep: make(chan os.Signal, 1)}
	up := make(chan agent.Addresses, 1)
	opt := agent.Options{
		Version:  "test",
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
		Guardian: []string{"/proc/self/exe", "guardian"},
		Up:       func(a agent.Addresses) { up <- a },
		Drained:  func(r holdfast.DrainReport) { n.report = r },
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.drain = cancel
	ran := make(chan struct{})
	t.Cleanup(func() { cancel(); <-ran })
	go func() {
		defer close(ran)
		n.ended <- agent.Serve(ctx, n.keep, nil, cfg, opt)
	}()
	select {
	case a := <-up:
		n.url, n.api = a.Gateway, a.API
	case err := <-n.ended:
		t.Fatalf("the agent did not start: %v", err)
	case <-time.After(patience):
		t.Fatal("the agent is not up")
	}
	return n
}

// stop ends the agent, with or without a drain.
func (n *node) stop(t *testing.T, keep bool) {
	t.Helper()
	if keep {
		n.keep <- syscall.SIGUSR2
	} else {
		n.drain()
	}
	select {
	case err := <-n.ended:
		if err != nil {
			t.Fatalf("the agent ended with: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the agent does not end")
	}
}

// demo builds the demo's image into the engine, as make demo-image does: a static server and
// busybox.
func demo(t *testing.T, e *lab.Engine) string {
	t.Helper()
	server := filepath.Join(t.TempDir(), "holdfast-demo")
	if err := labtest.Build(t.Context(), "holdfast/demo", server); err != nil {
		t.Fatal(err)
	}
	img, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	img.Ref = "holdfast-demo:latest"
	img.Files["bin/holdfast-demo"] = server
	img.Command = []string{"/bin/holdfast-demo"}
	img.Env = []string{"PATH=/bin", "HOME=/root"}
	if err := e.Import(t.Context(), img); err != nil {
		t.Fatal(err)
	}
	return img.Ref
}

func settings(t *testing.T, e *lab.Engine) config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	text := "templates:\n- {name: demo, image: " + demo(t, e) + ", port: 8080, ready: {http: /healthz}, init: false}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := t.TempDir()
	cfg, err := config.Load(t.Context(), file, config.Overrides{
		DataDir: t.TempDir(), RunDir: run, Socket: filepath.Join(run, "h.sock"),
		EngineHost: e.Host(), GatewayListen: "127.0.0.1:7070", APIListen: "127.0.0.1:7071",
	})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// A user opens a URL and works, and a second user joins. The agent is upgraded, and the host shuts
// down.
func TestABrowserOpensASession(t *testing.T) {
	b := browser.Start(t) // -short skips the test here
	cfg := settings(t, labtest.Engine(t))
	n := start(t, cfg)

	alice := b.Open(t, n.api+"/sessions/alice/open") // the dashboard leads to the gateway
	ready(t, alice)
	if at := browser.Eval[string](t, alice, "location.href"); at != n.url+"/s/alice/" {
		t.Errorf("the dashboard led to %s", at)
	}
	if got := alice.Text(t, "#session"); got != "alice" {
		t.Errorf("the page of alice says session %q", got)
	}
	alice.Type(t, "echo $HOLDFAST_SESSION > /tmp/note; hostname\r")
	host := alice.Text(t, "#host")
	alice.WaitText(t, screen, "\n"+host)

	guest := b.Open(t, n.url+"/s/alice/")
	ready(t, guest)
	alice.WaitText(t, "#people", "2")
	guest.Type(t, "cat /tmp/note | tr a-z A-Z\r")
	guest.WaitText(t, screen, "ALICE")

	bob := b.Open(t, n.url+"/s/bob/")
	ready(t, bob)
	bob.Type(t, "ls /tmp/note\r")
	bob.WaitText(t, screen, "No such file")
	for _, p := range []*browser.Page{alice, guest, bob} {
		p.Clean(t)
	}

	t.Log("the agent is replaced and keeps its containers")
	epoch := alice.Text(t, "#epoch")
	n.stop(t, true)
	alice.Wait(t, `document.body.dataset.state !== "open"`)
	n = start(t, cfg)
	alice.Wait(t, `document.body.dataset.state === "open"`)
	alice.Type(t, "clear; cat /tmp/note | tr a-z A-Z\r")
	alice.WaitText(t, screen, "ALICE")
	if now := alice.Text(t, "#epoch"); now != epoch {
		t.Errorf("epoch %s became %s", epoch, now)
	}

	t.Log("the host shuts down, and comes back")
	n.stop(t, false)
	if n.report.Dead != 2 || !n.report.Clean() {
		t.Errorf("the drain's report is %+v, want 2 dead and nothing left", n.report)
	}
	alice.WaitText(t, screen, "reconnecting")
	n = start(t, cfg)
	alice.Wait(t, `document.body.dataset.state === "open"`)
	alice.WaitText(t, screen, "now in container")
	alice.Type(t, "clear; ls /tmp/note\r")
	alice.WaitText(t, screen, "No such file")
	if now := alice.Text(t, "#epoch"); now == epoch {
		t.Errorf("epoch %s was given twice", now)
	}
	n.stop(t, false)
}

// ready waits for the shell's prompt, while the container boots.
func ready(t *testing.T, p *browser.Page) {
	t.Helper()
	p.Wait(t, `document.body.dataset.state === "open"`)
	p.WaitText(t, screen, ":/root$")
}
