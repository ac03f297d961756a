package agent

import (
	"path/filepath"
	"strings"
	"testing"

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

// TestMoveInABrowser: a user's shell continues on another node with its variable and its
// counter, and the page does not reconnect.
func TestMoveInABrowser(t *testing.T) {
	labtest.NeedLong(t, "a browser, the demo's image and a fleet; TestMove has the same without a browser")
	b := browser.Start(t)
	m := newMover(t)
	config := strings.Replace(m.config("", "    env: {DEMO_LINGER: 1m}\n    init: false\n"), "image: "+labtest.TestServer, "image: "+demoOn(t, m.engine), 1)
	config = strings.Replace(config, ", tell: moved", "", 1) // the page takes every text for a status
	hosts := newFleetOn(t, m.engine.Host(), 2, patient, func(int) string { return config }, (*host).start)
	hosts[0].must("session", "start", "a")
	leaving, _ := owner(t, hosts, "a")
	near := besides(hosts, leaving)[0]

	const screen = ".xterm-rows"
	p := b.Open(t, "http://"+near.gateway+"/s/a/")
	p.Wait(t, `document.body.dataset.state === "open"`)
	p.WaitText(t, screen, ":/root$")
	browser.Eval[bool](t, p, `(() => {
		window.states = [];
		new MutationObserver(() => window.states.push(document.body.dataset.state)).observe(document.body, {attributes: true});
		return true;
	})()`)
	p.Type(t, "x=still; (i=0; while :; do i=$((i+1)); echo $i >>/tmp/n; sleep 0.1; done) & clear; echo go-$((1+1))\r")
	p.WaitText(t, screen, "go-2")
	init := leaving.inits()["a"]
	near.must("node", "drain", leaving.node)
	p.Type(t, "echo $x-here; sleep 1; awk 'NR != $1 {bad = 1} END {print bad ? \"gap\" : \"whole\" \"-count\"}' /tmp/n\r")
	p.WaitText(t, screen, "still-here")
	p.WaitText(t, screen, "whole-count")
	if _, on := near.record("a"); on != near.node || alive(init) {
		t.Errorf("the session is on %s, the old process is alive: %v", on, alive(init))
	}
	if states := browser.Eval[string](t, p, `window.states.join(" ")`); states != "" {
		t.Errorf("the page has connected again: %s", states)
	}
	p.Clean(t)
}
