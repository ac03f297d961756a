package agent

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/test/browser"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// demoOn builds the demo's image into the engine, as make demo-image does.
func demoOn(t *testing.T, e *lab.Engine) string {
	t.Helper()
	server := filepath.Join(t.TempDir(), "holdfast-demo")
	if err := labtest.Build(t.Context(), "holdfast/demo", server); err != nil {
		t.Fatal(err)
	}
	img, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	img.Ref, img.Command, img.Env = "holdfast-demo:latest", []string{"/bin/holdfast-demo"}, []string{"PATH=/bin", "HOME=/root"}
	img.Files["bin/holdfast-demo"] = server
	if err := e.Import(t.Context(), img); err != nil {
		t.Fatal(err)
	}
	return img.Ref
}

// demoConfig is the mover's configuration with the demo in place of the test's server.
func (m *mover) demoConfig(t *testing.T, more string) string {
	t.Helper()
	config := m.config("", "    env: {DEMO_LINGER: 1m}\n    init: false\n"+more)
	config = strings.Replace(config, "image: "+labtest.TestServer, "image: "+demoOn(t, m.engine), 1)
	return strings.Replace(config, ", tell: moved", "", 1) // the page takes every text for a status
}

const screen = ".xterm-rows"

// openShell opens the demo's page, starts a counter in its shell, and records each change of the
// page's state.
func openShell(t *testing.T, b *browser.Browser, url string) *browser.Page {
	t.Helper()
	p := b.Open(t, url)
	p.Wait(t, `document.body.dataset.state === "open"`)
	p.WaitText(t, screen, ":/root$")
	browser.Eval[bool](t, p, `(() => {
		window.states = [];
		new MutationObserver(() => window.states.push(document.body.dataset.state)).observe(document.body, {attributes: true});
		return true;
	})()`)
	p.Type(t, "x=still; (i=0; while :; do i=$((i+1)); echo $i >>/tmp/n; sleep 0.1; done) & clear; echo go-$((1+1))\r")
	p.WaitText(t, screen, "go-2")
	return p
}

// expectSameShell checks that the shell has its variable, that its counter has no gap, and that
// the page has not connected again. name is a word of its own for each check.
func expectSameShell(t *testing.T, p *browser.Page, name string) {
	t.Helper()
	p.Type(t, "clear; echo $x-"+name+"; sleep 1; awk 'NR != $1 {bad = 1} END {print bad ? \"gap\" : \"whole\" \"-"+name+"\"}' /tmp/n\r")
	p.WaitText(t, screen, "still-"+name)
	p.WaitText(t, screen, "whole-"+name)
	if states := browser.Eval[string](t, p, `window.states.join(" ")`); states != "" {
		t.Errorf("the page has connected again: %s", states)
	}
}

// TestMoveInABrowser: a user's shell continues on another node with its variable and its
// counter, and the page does not reconnect.
func TestMoveInABrowser(t *testing.T) {
	labtest.NeedLong(t, "a browser, the demo's image and a fleet; TestMove has the same without a browser")
	b := browser.Start(t)
	m := newMover(t)
	config := m.demoConfig(t, "")
	hosts := newFleetOn(t, m.engine.Host(), 2, patient, func(int) string { return config }, (*host).start)
	hosts[0].must("session", "start", "a")
	leaving, _ := owner(t, hosts, "a")
	near := besides(hosts, leaving)[0]
	p := openShell(t, b, "http://"+near.gateway+"/s/a/")
	init := leaving.inits()["a"]
	near.must("node", "drain", leaving.node)
	expectSameShell(t, p, "moved")
	if _, on := near.record("a"); on != near.node || alive(init) {
		t.Errorf("the session is on %s, the old process is alive: %v", on, alive(init))
	}
	p.Clean(t)
}

// TestSleepInABrowser: a page with a shell stays open while its session is suspended and moves to
// another node. What the user types is answered by the same shell.
func TestSleepInABrowser(t *testing.T) {
	labtest.NeedLong(t, "a browser, the demo's image and a fleet; TestSuspendBehindAnotherNode has the same without a browser")
	b := browser.Start(t)
	m := newMover(t)
	config := m.demoConfig(t, "    sleep: {after: 3s, idle_by: data}\n")
	hosts := newFleetOn(t, m.engine.Host(), 2, patient, func(int) string { return config }, (*host).start)
	hosts[0].must("session", "start", "a")
	had, _ := owner(t, hosts, "a")
	near := besides(hosts, had)[0]
	p := openShell(t, b, "http://"+near.gateway+"/s/a/")
	for _, name := range []string{"first", "second"} {
		init := had.inits()["a"]
		had.awaitSuspended("a")
		if alive(init) {
			t.Error("the session is suspended, and its process is alive")
		}
		time.Sleep(5 * time.Second) // nothing of the page wakes it
		if s := had.sessions(); len(s) != 1 || s[0].State != "suspended" {
			t.Errorf("%+v", s)
		}
		expectSameShell(t, p, name)
	}
	had.awaitSuspended("a")
	near.must("node", "drain", had.node)
	had.must("agent", "stop")
	had.wait()
	expectSameShell(t, p, "third")
	if _, on := near.record("a"); on != near.node {
		t.Errorf("the session is on %s", on)
	}
	p.Clean(t)
}
