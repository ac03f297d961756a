package browser

import (
	"context"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// Taste is a setting of the user's system, as a media feature of CSS with its value.
type Taste struct{ Name, Value string }

// Prefer sets the media features of the page. Others have the browser's defaults.
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

// Zoom emulates a window of 1280 × 800 pixels at a zoom factor.
func (p *Page) Zoom(t testing.TB, times int64) {
	t.Helper()
	p.do(t, "zoom", chromedp.EmulateViewport(1280/times, 800/times, chromedp.EmulateScale(float64(times))))
}

// Scripts enables or disables the scripts of pages that load from now on.
func (p *Page) Scripts(t testing.TB, on bool) {
	t.Helper()
	if _, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}); err != nil {
		t.Fatalf("switch scripts: %v", err)
	}
}

// Back goes back to the previous page and waits for its load event.
func (p *Page) Back(t testing.TB) {
	t.Helper()
	p.do(t, "go back", chromedp.NavigateBack())
}

// Clipboard allows pages of an origin to read and write the browser's clipboard, without the
// browser's question.
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

// Await returns the value to which a JavaScript expression's promise resolves.
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
