package agent

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/test/browser"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
	"holdfast/test/poll"
)

const dashToken = "0123456789abcdef-of-a-person"

// newWatched starts an agent whose dashboard requires a login. It reports a slow pull at
// once, and its doctor has short intervals.
func newWatched(t *testing.T, templates string) *host {
	h := newNode(t, labtest.Engine(t).Host(), "")
	h.configure("spinup: {slow: {min_pull: 100ms}}\n" +
		"doctor: {every: 1s, burst: 1s, burst_every: 3s, look_every: 4s, cpu_share: 0.5}\n" +
		"templates:" + template + templates)
	tokens := filepath.Join(h.dir, "tokens")
	if err := os.WriteFile(tokens, []byte("eve "+dashToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(h.configFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.configFile(), []byte(strings.Replace(string(text), "api: {", "api: {token_file: "+tokens+", ", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	return h
}

// login opens the dashboard with a token.
func (h *host) login(p *browser.Page) {
	h.t.Helper()
	p.Go(h.t, "http://"+h.apiTCP+"/")
	p.WaitText(h.t, "h1", "Log in")
	p.KeepAll(h.t, "login")
	p.Click(h.t, "#token")
	p.Type(h.t, dashToken+"\r")
	p.WaitText(h.t, "h1", "Fleet")
}

// Events of the host in a browser: a slow pull links to its spin-up and its layers, and a
// drain changes open pages. The console of every page is empty.
func TestTheDashboardShowsWhatHappens(t *testing.T) {
	labtest.NeedLong(t, "a browser beside a fleet; test/dashboard tests each page")
	b := browser.Start(t)
	h := newWatched(t, "  - {name: slow, image: \""+throttled(t)+"\", port: 8080, ready: {http: /healthz, timeout: 2m}}\n")
	site := "http://" + h.apiTCP
	p := b.Blank(t)
	h.login(p)

	t.Run("a slow pull", func(t *testing.T) {
		p.Go(t, site+"/spinup")
		p.WaitText(t, "#groups", "There was no spin-up")
		h.must("session", "start", "snail", "--template", "slow")
		p.Wait(t, `document.querySelector("#groups tr.sum td:nth-child(3)")?.innerText.includes("1 of 1")`)
		if got := p.Text(t, "#groups tr.sum td:nth-child(3)"); !strings.HasPrefix(got, "100 %") {
			t.Errorf("of the downloads %q were slow", got)
		}
		p.KeepAll(t, "slow-pull-spinup")
		p.Click(t, "#groups tr.sum td:nth-child(3) a")
		p.WaitText(t, "#slow", "snail")
		p.Click(t, "#slow tbody a")
		p.WaitText(t, "#spinup", "Layers of its pull")
		if got := p.Text(t, "#spinup .tag.trouble"); got != "slow" {
			t.Errorf("its download is %q", got)
		}
		p.Usable(t, "one spin-up")
		p.KeepAll(t, "slow-pull-one")
		p.Clean(t)
	})

	t.Run("a drain", func(t *testing.T) {
		h.open("alice")
		fleet, sessions := b.Open(t, site+"/"), b.Open(t, site+"/sessions")
		sessions.WaitText(t, "#list", "alice")
		fleet.WaitText(t, "#list", "up")
		fleet.WaitText(t, "#live-state", "Updated by the server")
		h.must("drain")
		sessions.WaitText(t, "#list", "There are no sessions")
		fleet.WaitText(t, "#list", "cordoned")
		fleet.KeepAll(t, "drained-fleet")
		sessions.KeepAll(t, "drained-sessions")
		h.must("node", "uncordon")
		fleet.Wait(t, `!document.querySelector("#list").innerText.includes("cordoned")`)
		fleet.Clean(t)
		sessions.Clean(t)
	})

	for _, path := range []string{"/", "/sessions", "/sessions/unknown", "/slo", "/spinup", "/spinup/slow", "/gc", "/protect", "/doctor", "/doctor/fleet", "/doctor/recordings"} {
		p.Go(t, site+path)
		if p.Text(t, "h1") == "" {
			t.Errorf("%s has no heading", path)
		}
		p.Clean(t)
	}
}

// throttled returns the name of an image behind a slow connection.
func throttled(t *testing.T) string {
	t.Helper()
	reg, err := registry.Start(t.Context(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := registry.StartProxy(reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, stop := range []func() error{proxy.Stop, reg.Stop} {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
	if _, err := reg.Push(t.Context(), serverImage(t), "slow:1", registry.Options{}); err != nil {
		t.Fatal(err)
	}
	proxy.Set(registry.Faults{Rate: 2 << 20}) // a tenth of the rate that is not slow
	return proxy.Host() + "/slow:1"
}

// The doctor's page shows a finding as long as its cause exists. A click copies its cure to
// the clipboard.
func TestTheDashboardNamesAPathology(t *testing.T) {
	labtest.NeedLong(t, "a drill, until the doctor has found it and until it has seen it gone")
	b := browser.Start(t)
	h := newWatched(t, "")
	p := b.Blank(t)
	h.login(p)
	p.Clipboard(t, "http://"+h.apiTCP)
	p.Go(t, "http://"+h.apiTCP+"/doctor")
	ctx, cancel := context.WithCancel(t.Context())
	drill := exec.CommandContext(ctx, holdfastBinary(t), "doctor", "drill", "throttle", "--for", "5m")
	drill.Cancel = func() error { return drill.Process.Signal(os.Interrupt) }
	if err := drill.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		cancel()
		_ = drill.Wait() // it was interrupted
	}
	defer end()
	const finding = `[...document.querySelectorAll("#findings article")].find(e => e.innerText.includes("throttling"))`
	poll.Until(t, "the doctor has found it", func() bool { return strings.Contains(h.cli("doctor", "status").out, "throttling") })
	p.Wait(t, finding+` !== undefined`)
	if text := browser.Eval[string](t, p, finding+".innerText"); !strings.Contains(text, "holdfast-drill") || !strings.Contains(text, "periods in which it was throttled") || !strings.Contains(text, "Cures") {
		t.Errorf("the page shows\n%s", text)
	}
	browser.Eval[bool](t, p, finding+`.setAttribute("id", "throttling"), true`)
	p.Click(t, "#throttling [data-copy]")
	p.WaitText(t, "#live-state", "Copied.")
	if got, want := browser.Await[string](t, p, "navigator.clipboard.readText()"), p.Text(t, "#throttling .command pre"); got != want || !strings.HasPrefix(got, "docker update --cpus") {
		t.Errorf("the clipboard has %q, the cure is %q", got, want)
	}
	p.Usable(t, "a finding")
	p.KeepAll(t, "finding")
	end()
	poll.Until(t, "the doctor has seen it gone", func() bool { return !strings.Contains(h.cli("doctor", "status").out, "throttling") })
	p.Wait(t, finding+` === undefined`)
	p.WaitText(t, "#events", "ended")
	p.KeepAll(t, "finding-ended")
	p.Clean(t)
}

// Two recordings with perf events by the button: one of an idle host, and one with a busy
// session. The second recording and the difference show the session's container. Both can
// be downloaded. A recording without a waiting client ends.
func TestRecordingsByAButton(t *testing.T) {
	labtest.NeedLong(t, "recordings of five seconds")
	b := browser.Start(t)
	h := newWatched(t, "")
	p := b.Blank(t)
	h.login(p)
	h.open("alice")
	p.Go(t, "http://"+h.apiTCP+"/doctor/recordings")
	p.WaitText(t, "#recordings", "There are no recordings yet")
	p.KeepAll(t, "recordings-none")
	quiet := h.recorded(p)
	rest := h.keepBusy("/s/alice/")
	loud := h.recorded(p)
	rest()
	for _, part := range []string{".flame rect.g", ".flame rect.u", ".flame rect.k"} {
		if n := browser.Eval[int](t, p, `document.querySelectorAll("`+part+`").length`); n == 0 {
			t.Errorf("the flame graph has no %s", part)
		}
	}
	p.WaitText(t, "#recording", labtest.TestServer)
	p.Usable(t, "a recording")
	p.KeepAll(t, "recording")

	p.Go(t, "http://"+h.apiTCP+"/doctor/recordings")
	p.KeepAll(t, "recordings")
	if good, bad := browser.Eval[string](t, p, `document.querySelector("[name=good]:checked").value`), browser.Eval[string](t, p, `document.querySelector("[name=bad]:checked").value`); good != quiet || bad != loud {
		t.Errorf("offered to be compared are %s and %s, made were %s and %s", good, bad, quiet, loud)
	}
	p.Click(t, `form[action="/doctor/difference"] button`)
	p.WaitText(t, "h1", "What grew")
	p.WaitText(t, "body", "holdfast-alice")
	p.Usable(t, "a difference")
	p.KeepAll(t, "difference")
	p.Clean(t)

	for _, id := range []string{quiet, loud} {
		if err := os.WriteFile(filepath.Join(h.dir, id), h.asAdmin(http.MethodGet, "/v1/doctor/recordings/"+id, "", time.Minute), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out := h.must("doctor", "diff", filepath.Join(h.dir, quiet), filepath.Join(h.dir, loud)); !strings.Contains(out, "holdfast-alice") {
		t.Errorf("the files differ in\n%s", out)
	}

	h.asAdmin(http.MethodPost, "/v1/doctor/recordings", `{"for_ms": 60000}`, time.Second) // and no longer
	poll.Until(t, "the next can be made", func() bool {
		return strings.Contains(string(h.asAdmin(http.MethodPost, "/v1/doctor/recordings", `{"for_ms": 1000}`, time.Minute)), `"id"`)
	})
}

// keepBusy requests a path continuously, until the returned function is called.
func (h *host) keepBusy(path string) (rest func()) {
	ctx, cancel := context.WithCancel(h.t.Context())
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for ctx.Err() == nil {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.gateway+path, nil)
				if err != nil {
					h.t.Error(err)
					return
				}
				if res, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, res.Body) // it may be cut off at the end
					res.Body.Close()
				}
			}
		})
	}
	return func() {
		cancel()
		asking.Wait()
		http.DefaultClient.CloseIdleConnections()
	}
}

// recorded makes a recording of five seconds by the button, and returns its id.
func (h *host) recorded(p *browser.Page) (id string) {
	h.t.Helper()
	p.Go(h.t, "http://"+h.apiTCP+"/doctor/recordings")
	browser.Eval[bool](h.t, p, `document.getElementById("seconds").value = "5", true`)
	p.Click(h.t, `form[action="/doctor/recordings"] button`)
	p.WaitText(h.t, "h1", "Recording 20")
	return strings.TrimPrefix(p.Text(h.t, "h1"), "Recording ")
}

// asAdmin returns the API's answer, or the part that arrives within the time limit.
func (h *host) asAdmin(method, path, body string, limit time.Duration) []byte {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+h.apiTCP+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+dashToken)
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil
	}
	return text
}
