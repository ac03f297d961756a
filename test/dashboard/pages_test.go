package dashboard

import (
	"context"
	"flag"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"holdfast"
	"holdfast/internal/api"
	"holdfast/internal/api/apitest"
	made "holdfast/internal/bench/dashboard"
	"holdfast/internal/dashboard"
	"holdfast/test/browser"
)

var pictures = flag.String("pictures", "", "a `directory` to write pictures of the pages to, for people to look at")

// serveMade serves the pages over a made-up fleet.
func serveMade(t *testing.T, f *made.Fleet) string {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	o := api.Options{Admin: true, Log: log}
	d, err := dashboard.New(f, dashboard.Options{Access: o, API: api.New(&apitest.Backend{}, o), Metrics: f.Metrics(), Log: log,
		SessionURL: func(*http.Request, holdfast.SessionKey) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	s := httptest.NewServer(d.Handler())
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s.URL
}

// picture keeps one where somebody wants them.
func picture(t *testing.T, p *browser.Page, name string) {
	t.Helper()
	if *pictures == "" {
		return
	}
	if err := os.MkdirAll(*pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	p.Picture(t, filepath.Join(*pictures, name+".png"))
}

// Every page is free of barriers that axe-core finds, in light and dark, on a
// large window and on a phone, and nothing is in the console.
func TestPagesAreUsable(t *testing.T) {
	b := browser.Start(t)
	url := serveMade(t, made.NewFleet(1000, 10_000, 1))
	p := b.Blank(t) // one for all: a browser has six connections to a host
	for _, page := range []struct{ name, path string }{
		{"fleet", "/"}, {"sessions", "/sessions"}, {"session", "/sessions/user-00005"}, {"nothing", "/?q=nobody"}, {"no-session", "/sessions/nobody"},
		{"slo", "/slo"}, {"spinup", "/spinup"}, {"spinup-hour", "/spinup?per=hour&by=image&kind=session"}, {"slow", "/spinup/slow?phase=create"},
		{"gc", "/gc"}, {"protect", "/protect"}, {"doctor", "/doctor"}, {"compare", "/doctor/fleet"},
		{"recordings", "/doctor/recordings"}, {"recording", "/doctor/recordings/20260101-090000-000"}, {"difference", "/doctor/difference?good=20260101-080000-000&bad=20260101-090000-000"},
	} {
		t.Run(page.name, func(t *testing.T) { usable(t, p, page.name, url+page.path) })
	}
}

// usable looks at one page in all its forms.
func usable(t *testing.T, p *browser.Page, name, url string) {
	for _, scheme := range []string{"light", "dark"} {
		for _, phone := range []bool{false, true} {
			name := name + "-" + scheme
			p.Scheme(t, scheme)
			if p.Size(t, 1280, 1400); phone {
				p.Phone(t)
				name += "-phone"
			}
			p.Go(t, url)
			p.Wait(t, `document.getElementById("live-state") === null || !!window.htmx && !!document.getElementById("live")._htmx`)
			p.Usable(t, name)
			if wide := browser.Eval[bool](t, p, `document.documentElement.scrollWidth > document.documentElement.clientWidth`); wide {
				t.Errorf("%s: the page is wider than the window", name)
			}
			picture(t, p, name)
			p.Clean(t)
		}
	}
}

// What the stream brings changes the page in place: the focus stays.
func TestThePageIsKeptUpToDate(t *testing.T) {
	b := browser.Start(t)
	f := made.NewFleet(20, 200, 1)
	p := b.Open(t, serveMade(t, f)+"/")
	p.Wait(t, `!!document.getElementById("live")?._htmx?.sse`)
	browser.Eval[bool](t, p, `document.querySelector("#node-web-0003 a").focus(), true`)
	before := p.Text(t, "#list")
	f.Change()
	p.Wait(t, `document.querySelector("#list").innerText !== `+quoted(before))
	if id := browser.Eval[string](t, p, `document.activeElement.closest("tr")?.id ?? ""`); id != "node-web-0003" {
		t.Errorf("after an update the focus is at %q", id)
	}
	p.Clean(t)
}
