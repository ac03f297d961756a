package agent

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"holdfast/internal/lab/labtest"
	"holdfast/internal/lab/registry"
	"holdfast/test/browser"
)

// What a person sees in a browser while things happen on the host: a pull that is
// slow, a drain, and with -long a pathology and a recording of it. Nothing is in
// any page's console.
func TestTheDashboardShowsWhatHappens(t *testing.T) {
	b := browser.Start(t)
	h := newNode(t, labtest.Engine(t).Host(), "")
	slow := throttled(t)
	h.configure("spinup: {slow: {min_pull: 100ms}}\ndoctor: {every: 1s, burst: 2s, burst_every: 3s, look_every: 4s, cpu_share: 0.5}\n" +
		"templates:" + template + "  - {name: slow, image: \"" + slow + "\", port: 8080, ready: {http: /healthz, timeout: 2m}}\n")
	h.start()
	site := "http://" + h.apiTCP

	t.Run("a slow pull", func(t *testing.T) {
		h.must("session", "start", "snail", "--template", "slow")
		p := b.Open(t, site+"/spinup")
		p.Wait(t, `document.querySelector("#groups tr.sum")?.innerText.includes("1 of 1")`)
		if got := p.Text(t, "#groups tr.sum td:nth-child(3)"); !strings.HasPrefix(got, "100 %") {
			t.Errorf("of the downloads %q were slow", got)
		}
		p.Click(t, "#groups tr.sum td:nth-child(3) a")
		p.WaitText(t, "#slow", "snail")
		p.Click(t, "#slow tbody a")
		p.WaitText(t, "#spinup", "slow")
		p.WaitText(t, "#spinup", "Layers of its pull")
		p.Clean(t)
	})

	t.Run("a drain", func(t *testing.T) {
		h.open("alice")
		fleet, sessions := b.Open(t, site+"/"), b.Open(t, site+"/sessions")
		sessions.WaitText(t, "#list", "alice")
		fleet.WaitText(t, "#list", "up")
		h.must("drain")
		sessions.WaitText(t, "#list", "No session is as you asked")
		fleet.WaitText(t, "#list", "cordoned")
		h.must("node", "uncordon")
		fleet.Wait(t, `!document.querySelector("#list").innerText.includes("cordoned")`)
		fleet.Clean(t)
		sessions.Clean(t)
	})

	if labtest.Long() {
		t.Run("a pathology", func(t *testing.T) { pathology(t, b, h) })
	}

	p := b.Blank(t)
	for _, path := range []string{"/", "/sessions", "/sessions/nobody", "/slo", "/spinup", "/spinup/slow", "/gc", "/protect", "/doctor", "/doctor/fleet", "/doctor/recordings"} {
		p.Go(t, site+path)
		if p.Text(t, "h1") == "" {
			t.Errorf("%s has no heading", path)
		}
		p.Clean(t)
	}
}

// throttled is the name of an image behind a slow line.
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
	proxy.Set(registry.Faults{Rate: 2 << 20}) // a tenth of what is not slow
	return proxy.Host() + "/slow:1"
}

// pathology makes one for practice, sees it on the page, and records the host
// meanwhile.
func pathology(t *testing.T, b *browser.Browser, h *host) {
	ctx, cancel := context.WithCancel(t.Context())
	drill := exec.CommandContext(ctx, holdfastBinary(t), "doctor", "drill", "throttle", "--for", "3m")
	drill.Cancel = func() error { return drill.Process.Signal(os.Interrupt) }
	if err := drill.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = drill.Wait() // it was interrupted
	}()
	eventually(t, "the doctor has found it", func() bool {
		r, err := http.Get("http://" + h.apiTCP + "/v1/doctor")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		return err == nil && strings.Contains(string(text), `"rule":"throttling"`)
	})
	p := b.Open(t, "http://"+h.apiTCP+"/doctor")
	p.WaitText(t, "#findings", "throttling")
	p.WaitText(t, "#findings", "Cures")
	if !browser.Eval[bool](t, p, `getComputedStyle(document.querySelector("[data-copy]")).display !== "none"`) {
		t.Error("a cure cannot be copied on loopback")
	}
	p.Clean(t)
	p.Go(t, "http://"+h.apiTCP+"/doctor/recordings")
	if text := p.Text(t, "main"); !strings.Contains(text, "To record you need a token") {
		t.Errorf("who may only look sees:\n%s", text)
	}
}
