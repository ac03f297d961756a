package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Page is one tab. Every method fails the test after an error. Only the test's goroutine may
// call the methods.
type Page struct {
	ctx     context.Context
	read    chan struct{} // closed when the console is read to its end
	mu      sync.Mutex
	console []string
}

// Go loads a URL and waits for its load event.
func (p *Page) Go(t testing.TB, url string) {
	t.Helper()
	p.do(t, "load "+url, chromedp.Navigate(url))
}

// Type presses the keys of text one by one, in the element with the focus. "\r" is Enter; keys
// without a character are in package chromedp/kb.
func (p *Page) Type(t testing.TB, text string) {
	t.Helper()
	p.do(t, fmt.Sprintf("type %q", text), func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		for _, r := range text {
			if err := press(ctx, target, r); err != nil {
				return chromedp.Void{}, err
			}
		}
		return chromedp.Void{}, nil
	})
}

// press sends one key as a keyboard does, with the character in the keydown event.
// chromedp.KeyEvent sends the character in a separate event, and terminals get every key
// twice.
func press(ctx context.Context, target *chromedp.Target, r rune) error {
	for _, e := range kb.Encode(r) {
		switch {
		case e.Type == kb.KeyChar:
			continue
		case e.Type == kb.KeyDown && (unicode.IsPrint(r) || r == '\r'):
			e.Text = string(r)
			e.UnmodifiedText = string(r)
		}
		if _, err := cdp.Call(ctx, target, input.DispatchKeyEvent, *e); err != nil {
			return fmt.Errorf("press %q: %w", r, err)
		}
	}
	return nil
}

// Click clicks the middle of the first visible element that matches.
func (p *Page) Click(t testing.TB, selector string) {
	t.Helper()
	p.do(t, "click "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// WaitText waits until the visible text of the first matching element contains want. A
// no-break space, which terminals use for blanks, counts as a space.
func (p *Page) WaitText(t testing.TB, selector, want string) {
	t.Helper()
	p.Wait(t, fmt.Sprintf(`(document.querySelector(%q)?.innerText ?? "").replaceAll("\u00a0", " ").includes(%q)`, selector, want))
}

// Wait waits until a JavaScript expression is true. The browser may load other pages while
// Wait waits.
func (p *Page) Wait(t testing.TB, expression string) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		_, err = chromedp.Run(p.ctx, chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(time.Until(end))))
		if err == nil || errors.Is(err, chromedp.ErrPollingTimeout) || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		t.Fatalf("wait for %s: %v\nthe page says:\n%s\nthe console says: %q", expression, err, p.Text(t, "body"), p.Console())
	}
}

// Text returns the visible text of the first element that matches, "" without one.
func (p *Page) Text(t testing.TB, selector string) string {
	t.Helper()
	return Eval[string](t, p, fmt.Sprintf(`(document.querySelector(%q)?.innerText ?? "").replaceAll("\u00a0", " ").trim()`, selector))
}

// Eval returns the value of a JavaScript expression.
func Eval[T any](t testing.TB, p *Page, expression string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("evaluate %s: %v", expression, err)
	}
	return v
}

// Console returns the console's content: messages, exceptions, failed requests, violations of
// the content policy.
func (p *Page) Console() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.console)
}

// Clean fails the test if anything is in the console.
func (p *Page) Clean(t testing.TB) {
	t.Helper()
	if c := p.Console(); len(c) > 0 {
		t.Errorf("the console is not empty:\n%s", strings.Join(c, "\n"))
	}
}

// Scheme sets the color scheme that the user prefers: light or dark.
func (p *Page) Scheme(t testing.TB, scheme string) {
	t.Helper()
	p.Prefer(t, Taste{"prefers-color-scheme", scheme})
}

// Size makes the window width × height CSS pixels.
func (p *Page) Size(t testing.TB, width, height int) {
	t.Helper()
	p.do(t, "resize", chromedp.EmulateViewport(int64(width), int64(height)))
}

// Phone emulates a telephone: a small upright window and a touch screen.
func (p *Page) Phone(t testing.TB) {
	t.Helper()
	p.do(t, "become a phone", chromedp.EmulateViewport(390, 780,
		chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulatePortrait, chromedp.EmulateScale(2)))
}

// Keep saves a screenshot as NAME.png in the directory of the flag -pictures, if it is set.
func (p *Page) Keep(t testing.TB, name string) {
	t.Helper()
	if *pictures == "" {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	b, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatalf("take a picture: %v", err)
	}
	if err := os.MkdirAll(*pictures, 0o755); err != nil {
		t.Fatalf("keep a picture: %v", err)
	}
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), b, 0o644); err != nil {
		t.Fatalf("keep a picture: %v", err)
	}
}

// KeepAll is Keep in light and dark, on a large window and on a telephone. Afterwards the page
// is light and large.
func (p *Page) KeepAll(t testing.TB, name string) {
	t.Helper()
	if *pictures == "" {
		return
	}
	for _, scheme := range []string{"dark", "light"} {
		p.Scheme(t, scheme)
		p.Phone(t)
		p.Keep(t, name+"-"+scheme+"-phone")
		p.do(t, "be no telephone any more", chromedp.EmulateReset())
		p.Size(t, 1280, 1000)
		p.Keep(t, name+"-"+scheme)
	}
}

func (p *Page) do(t testing.TB, what string, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
