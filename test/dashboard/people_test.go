package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"holdfast"
	made "holdfast/bench/dashboard"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/dashboard"
	"holdfast/internal/hosts/spinup"
	"holdfast/test/browser"
	"holdfast/test/lab/labtest"
)

// A user without a mouse skips the menu, goes through it, searches, opens a result, and
// goes back to the previous position.
func TestByKeyboardAlone(t *testing.T) {
	b := browser.Start(t)
	p := b.Open(t, serveMade(t, made.NewFleet(20, 250, 1))+"/")
	p.Type(t, "\t")
	if at := p.Text(t, ":focus"); at != "Skip to the content" {
		t.Errorf("the first that has the focus is %q", at)
	}
	p.Type(t, "\r")
	p.Wait(t, `document.activeElement.id === "content"`)
	p.Go(t, browser.Eval[string](t, p, "location.origin")+"/")
	for range 10 {
		if p.Type(t, "\t"); p.Text(t, "nav :focus") == "Sessions" {
			break
		}
	}
	p.Type(t, "\r")
	p.WaitText(t, "h1", "Sessions")
	for range 30 {
		if p.Type(t, "\t"); browser.Eval[bool](t, p, `document.activeElement.id === "q"`) {
			break
		}
	}
	p.Type(t, "0004\r")
	p.Wait(t, `location.search.includes("q=0004") && document.querySelectorAll("#list tbody tr").length > 0`)
	rows := p.Text(t, "#list tbody")
	for range 60 {
		if p.Type(t, "\t"); browser.Eval[bool](t, p, `!!document.activeElement.closest("#list tbody th")`) {
			break
		}
	}
	key := p.Text(t, ":focus")
	p.Type(t, "\r")
	p.WaitText(t, "h1", "Session "+key)
	p.Back(t)
	p.WaitText(t, "h1", "Sessions")
	if got := browser.Eval[string](t, p, `document.getElementById("q").value`); got != "0004" {
		t.Errorf("back in the list, the search is for %q", got)
	}
	if keys(p.Text(t, "#list tbody")) != keys(rows) {
		t.Errorf("back in the list, it is another one:\n%s\nand was\n%s", p.Text(t, "#list tbody"), rows)
	}
	p.Wait(t, `!!document.getElementById("live")?._htmx?.sse`) // live updates begin again
	p.Clean(t)
}

// keys returns the first words of a table's rows, because ages change.
func keys(rows string) (all string) {
	for line := range strings.Lines(rows) {
		all += strings.Fields(line + " -")[0] + " "
	}
	return all
}

// reachable numbers the elements that the Tab key must reach. Of a group of radio
// buttons it reaches one.
const reachable = `(() => {
	const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')].filter(e =>
		e.tabIndex >= 0 && e.type !== "hidden" && e.checkVisibility() && (e.type !== "radio" || e.checked));
	all.forEach((e, i) => e.setAttribute("data-n", i));
	return all.length;
})()`

// focused returns the number of the element with the focus, and its defects.
const focused = `(() => {
	const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect(), wrong = [];
	if (s.outlineStyle === "none" || parseFloat(s.outlineWidth) < 2) wrong.push("its focus is not to be seen");
	if (r.bottom <= 0 || r.top >= innerHeight || r.right <= 0 || r.left >= innerWidth) wrong.push("it is outside the window");
	return [e.getAttribute("data-n") ?? "", wrong.join(", "), e.outerHTML.slice(0, 120)];
})()`

// The Tab key reaches each control of a page once, and the control is visible.
func TestEveryPageByKeyboard(t *testing.T) {
	long(t)
	b := browser.Start(t)
	f := made.NewFleet(60, 60, 1)
	url := serveMade(t, f)
	p := b.Blank(t)
	for _, page := range pages(t, f) {
		for _, open := range []bool{false, true} {
			p.Go(t, url+page.path+map[bool]string{true: "&", false: "?"}[strings.Contains(page.path, "?")]+"live=off")
			if open {
				browser.Eval[bool](t, p, `document.querySelectorAll("details").forEach(d => d.open = true), true`)
			}
			n := browser.Eval[int](t, p, reachable)
			got := map[string]bool{}
			for range n {
				p.Type(t, "\t")
				at := browser.Eval[[]string](t, p, focused)
				if got[at[0]] || at[0] == "" {
					t.Errorf("%s: Tab leads to %s, after %d of %d", page.name, at[2], len(got), n)
					break
				}
				if got[at[0]] = true; at[1] != "" {
					t.Errorf("%s: %s: %s", page.name, at[2], at[1])
				}
			}
			if n < 3 && page.name != "difference" {
				t.Errorf("%s: %d elements", page.name, n)
			}
		}
	}
}

// A page fits the window at a zoom of 200 and 400 %, and with letters of twice the
// size. Nothing moves by itself. If the user prefers reduced motion, nothing moves at
// all.
func TestZoomedInAndStill(t *testing.T) {
	long(t)
	b := browser.Start(t)
	f := made.NewFleet(1000, 10_000, 1)
	url := serveMade(t, f)
	p := b.Blank(t)
	p.Prefer(t, browser.Taste{Name: "prefers-reduced-motion", Value: "reduce"})
	for _, page := range pages(t, f) {
		for _, times := range []int64{2, 4} {
			name := fmt.Sprintf("%s-%d00-percent", page.name, times)
			p.Zoom(t, times)
			p.Go(t, url+page.path)
			notWide(t, p, name)
			p.Keep(t, name)
		}
		p.Size(t, 1280, 800)
		p.Go(t, url+page.path)
		browser.Eval[bool](t, p, `document.documentElement.style.fontSize = "200%", true`)
		notWide(t, p, page.name+" with large letters")
		p.Keep(t, page.name+"-letters")
		if moving := browser.Eval[string](t, p, `[...document.querySelectorAll("*")].filter(e => { const s = getComputedStyle(e);
			return s.animationName !== "none" || s.transitionDuration.split(", ").some(d => d !== "0s") || s.scrollBehavior !== "auto"; }).map(e => e.outerHTML.slice(0, 80)).join("\n")`); moving != "" {
			t.Errorf("%s: this moves:\n%s", page.name, moving)
		}
		p.Clean(t)
	}
}

// Without scripts all pages load and show their time, and searches, links and buttons
// work.
func TestWithoutScripts(t *testing.T) {
	long(t)
	b := browser.Start(t)
	f := made.NewFleet(20, 250, 1)
	acts := &apitest.Backend{}
	if _, err := acts.StartSession(t.Context(), "user-00005", ""); err != nil {
		t.Fatal(err)
	}
	url := serveWith(t, f, acts)
	p := b.Blank(t)
	p.Scripts(t, false)
	for _, page := range pages(t, f) {
		p.Go(t, url+page.path)
		text := p.Text(t, "body")
		if p.Text(t, "h1") == "" || len(text) < 150 {
			t.Errorf("%s says only\n%s", page.name, text)
		}
		if strings.Contains(text, "Updated by the server") {
			t.Errorf("%s says that it is updated", page.name)
		}
		p.Keep(t, page.name+"-no-scripts")
	}
	p.Go(t, url+"/sessions")
	p.WaitText(t, ".live", "State at ")
	p.Click(t, `a[rel="next"]`)
	p.WaitText(t, ".pager", "101 to 200 of 250")
	p.Click(t, "#q")
	p.Type(t, "0005\r")
	p.WaitText(t, ".pager", " of ")
	p.Click(t, "#session-user-00005 th a")
	p.WaitText(t, "h1", "Session user-00005")
	p.Click(t, "button.bad")
	p.WaitText(t, "main", "Session user-00005 was stopped")
	if _, err := acts.Session(t.Context(), "user-00005"); err == nil {
		t.Error("the button did nothing")
	}
	p.Click(t, "main a")
	p.WaitText(t, "h1", "Sessions")
	p.Go(t, url+"/spinup")
	p.Click(t, "summary")
	p.Wait(t, `document.querySelector("details").open`)
	p.Clean(t)
}

// odd is a fleet in which every name has the maximum length, or a fleet of one node
// without any records.
type odd struct {
	*made.Fleet
	empty bool
}

const endless = "abcdefghijklmnopqrstuvwxyz0123456789-abcdefghijklmnopqrstuvwxyz"

func (f odd) Source() dashboard.Source {
	s := f.Fleet.Source()
	s.Nodes, s.Sessions, s.Spinups, s.Spinup = f.Nodes, f.Sessions, f.Spinups, f.Spinup
	return s
}

func (f odd) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	all, err := f.Fleet.Nodes(ctx)
	for i := range all {
		if f.empty {
			all[i].Trouble, all[i].Degraded, all[i].Draining = "", "", false
			continue
		}
		all[i].ID = holdfast.NodeID(endless[:len(endless)-4] + fmt.Sprintf("%04d", i))
		all[i].Trouble, all[i].Address, all[i].Version = "the_engine_at_unix:///"+strings.Repeat("run/", 60)+"docker.sock does not answer", strings.Repeat("node.", 20)+"example:7070", "v1.4.2-1234-gabcdef0123456789-dirty"
	}
	return all, err
}

func (f odd) Sessions(ctx context.Context) ([]api.Session, error) {
	all, err := f.Fleet.Sessions(ctx)
	for i := range all {
		all[i].Key = holdfast.SessionKey(fmt.Sprintf("%05d-", i) + endless[:holdfast.MaxKeyLen-6])
		all[i].Node = holdfast.NodeID(endless)
		all[i].Template, all[i].LastError = strings.Repeat("template", 8), strings.Repeat("cannot_be_broken_", 40)
	}
	return all, err
}

func (f odd) Spinups(by spinup.Filter) ([]spinup.Record, error) {
	all, err := f.Fleet.Spinups(by)
	if f.empty {
		return nil, err
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].Image, all[i].Job = "registry.example:5000/"+strings.Repeat("team/", 40)+"image@sha256:"+strings.Repeat("0", 64), endless
		all[i].Cohort.Host = endless
	}
	return all, err
}

func (f odd) Spinup(id string) (spinup.Record, error) {
	r, err := f.Fleet.Spinup(id)
	r.Image, r.Job, r.Error = strings.Repeat("registry/", 40)+"x", endless, strings.Repeat("no_space_left_", 50)
	r.Outcome = spinup.Failed
	return r, err
}

// Pages stay usable with names of the maximum length, and without any records.
func TestOddFleets(t *testing.T) {
	long(t)
	b := browser.Start(t)
	p := b.Blank(t)
	for name, f := range map[string]odd{"long": {made.NewFleet(300, 400, 1), false}, "empty": {made.NewFleet(1, 0, 1), true}} {
		url := serveMade(t, f)
		for _, page := range pages(t, f.Fleet) {
			if page.name == "session" && !f.empty {
				page.path = "/sessions/00005-" + endless[:holdfast.MaxKeyLen-6]
			}
			t.Run(name+"-"+page.name, func(t *testing.T) {
				usable(t, p, name+"-"+page.name, url+page.path, all)
				if text := p.Text(t, "main"); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || strings.Contains(text, "%!") {
					t.Errorf("it says\n%s", text)
				}
			})
		}
	}
}

// long skips a test unless -long is set.
func long(t *testing.T) {
	t.Helper()
	labtest.NeedLong(t, "every page, again and again, in a browser")
}
