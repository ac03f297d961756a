package browser

import (
	"context"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// Taste is what a person has set in the system, by the name and value of a media
// feature of CSS.
type Taste struct{ Name, Value string }

// Prefer sets what the page is told of the user's taste; what is not named is as the
// browser has it.
func (p *Page) Prefer(t testing.TB, all ...Taste) {
	t.Helper()
	var features []*emulation.MediaFeature
	for _, x := range all {
		features = append(features, &emulation.MediaFeature{Name: x.Name, Value: x.Value})
	}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		t.Fatalf("prefer %v: %v", all, err)
	}
}

// Zoom makes the window one of 1280 × 800 pixels that is zoomed in so many times.
func (p *Page) Zoom(t testing.TB, times int64) {
	t.Helper()
	p.do(t, "zoom", chromedp.EmulateViewport(1280/times, 800/times, chromedp.EmulateScale(float64(times))))
}

// Scripts switches those of pages that are loaded from now on.
func (p *Page) Scripts(t testing.TB, on bool) {
	t.Helper()
	if _, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}); err != nil {
		t.Fatalf("switch scripts: %v", err)
	}
}

// Back goes to the page before, as the browser's button does, and waits for its load
// event.
func (p *Page) Back(t testing.TB) {
	t.Helper()
	p.do(t, "go back", chromedp.NavigateBack())
}

// Clipboard lets pages of an origin read and write the browser's clipboard, which a
// person would be asked for.
func (p *Page) Clipboard(t testing.TB, origin string) {
	t.Helper()
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		_, err := chromedp.CallBrowser(p.ctx, cdpbrowser.SetPermission, cdpbrowser.SetPermissionParams{
			Permission: &cdpbrowser.PermissionDescriptor{Name: name}, Setting: cdpbrowser.PermissionSettingGranted, Origin: origin,
		})
		if err != nil {
			t.Fatalf("permit %s: %v", name, err)
		}
	}
}

// Await returns the value that a JavaScript expression's promise comes to.
func Await[T any](t testing.TB, p *Page, expression string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("await %s: %v", expression, err)
	}
	return v
}
