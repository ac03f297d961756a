package dashboard

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	made "holdfast/bench/dashboard"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/dashboard"
	"holdfast/internal/hosts/spinup"
	"holdfast/test/browser"
	"holdfast/test/lab/labtest"
)

// sourced is the data source of the pages.
type sourced interface{ Source() dashboard.Source }

// serveMade serves the pages of a generated fleet.
func serveMade(t *testing.T, f sourced) string {
	t.Helper()
	return serveWith(t, f, &apitest.Backend{})
}

// serveWith is serveMade with handlers for the buttons.
func serveWith(t *testing.T, f sourced, acts *apitest.Backend) string {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	o := api.Options{Admin: true, Log: log}
	var metrics prometheus.Gatherer
	if m, ok := f.(interface{ Metrics() prometheus.Gatherer }); ok {
		metrics = m.Metrics()
	}
	d, err := dashboard.New(f.Source(), dashboard.Options{Access: o, API: api.New(acts.Parts(), o), Metrics: metrics, Log: log,
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

// pages returns all pages of a generated fleet. Add new pages of the dashboard here.
func pages(t *testing.T, f *made.Fleet) []struct{ name, path string } {
	t.Helper()
	spins, err := f.Spinups(spinup.Filter{Limit: 1})
	if err != nil || len(spins) != 1 || spins[0].Pull == nil {
		t.Fatalf("a spin-up with a pull: %+v, %v", spins, err)
	}
	return []struct{ name, path string }{
		{"fleet", "/"}, {"sessions", "/sessions"}, {"session", "/sessions/user-00005"}, {"suspended", "/sessions/user-00051"}, {"nothing", "/?q=unknown"}, {"no-session", "/sessions/unknown"},
		{"slo", "/slo"}, {"spinup", "/spinup"}, {"spinup-hour", "/spinup?per=hour&by=image&kind=session"}, {"slow", "/spinup/slow?phase=create"}, {"spin", "/spinup/" + spins[0].ID},
		{"gc", "/gc"}, {"protect", "/protect"}, {"doctor", "/doctor"}, {"compare", "/doctor/fleet"}, {"spinfleet", "/spinup/fleet"},
		{"recordings", "/doctor/recordings"}, {"recording", "/doctor/recordings/20260101-090000-000"}, {"difference", "/doctor/difference?good=20260101-080000-000&bad=20260101-090000-000"},
	}
}

// axe-core finds no violation on any page, and the console stays empty: in light on a large window
// and in dark on a phone. With -long the test also runs the other two combinations.
func TestPagesAreUsable(t *testing.T) {
	b := browser.Start(t)
	f := made.NewFleet(1000, 10_000, 1)
	url := serveMade(t, f)
	p := b.Blank(t) // one tab for all pages: a browser has six connections to a host
	for i, page := range pages(t, f) {
		form := i % 4
		if labtest.Long() || browser.Pictures() {
			form = all
		}
		t.Run(page.name, func(t *testing.T) { usable(t, p, page.name, url+page.path, form) })
	}
}

// all stands for all four forms of a page. Without -long each page is checked in one of them.
const all = -1

// usable checks one page in a form, or in all of them.
func usable(t *testing.T, p *browser.Page, name, url string, form int) {
	for i, scheme := range []string{"light", "dark"} {
		for j, phone := range []bool{false, true} {
			if form != all && form != 2*i+j {
				continue
			}
			name := name + "-" + scheme
			p.Scheme(t, scheme)
			if p.Size(t, 1280, 1400); phone {
				p.Phone(t)
				name += "-phone"
			}
			p.Go(t, url)
			p.Wait(t, `document.getElementById("live-state") === null || !!window.htmx && !!document.getElementById("live")._htmx`)
			p.Usable(t, name)
			notWide(t, p, name)
			p.Keep(t, name)
			p.Clean(t)
		}
	}
}

// notWide fails the test if a page scrolls horizontally. Tables and pictures in it may
// scroll.
func notWide(t *testing.T, p *browser.Page, name string) {
	t.Helper()
	if wide := browser.Eval[bool](t, p, `document.documentElement.scrollWidth > document.documentElement.clientWidth`); wide {
		t.Errorf("%s: the page is wider than the window", name)
	}
}

// The stream updates the page in place: the focus stays.
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
