// Package browser drives Debian's Chromium from tests: it opens pages, types, waits for text,
// reads the console and takes screenshots. Without a browser the test fails. Only -short
// skips it.
package browser

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

var pictures = flag.String("pictures", "", "a `directory` to write pictures of pages to, for people to look at")

// Pictures reports whether screenshots are requested.
func Pictures() bool { return *pictures != "" }

// patience limits each step, so that none hangs. It is no measurement.
const patience = 30 * time.Second

// Browser is one running Chromium with a profile of its own.
type Browser struct {
	ctx context.Context
}

// Start runs a Chromium with a new profile until the test ends. With -short it skips the test.
func Start(t testing.TB) *Browser {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: Chromium is large and may not be installed; make test installs it")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("find Chromium: %v (Debian's package chromium; make test installs it)", err)
	}
	// Chromium is killed at the end, and leaves its directories of temporary files. The path of a
	// socket in them has to be short, and t.TempDir contains the name of the test.
	dir, err := os.MkdirTemp("", "browser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// Without UserDataDir the allocator creates a temporary profile and removes it.
	alloc, stop := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path),
		chromedp.Env("TMPDIR="+dir),
		chromedp.Headless,
		chromedp.NoSandbox, // root cannot use the sandbox
		chromedp.DisableGPU,
		chromedp.NoFirstRun,
		chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), // it is small in containers
		chromedp.WindowSize(1100, 700),
	)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	// The browser runs as long as the context of the first call, which therefore has no
	// deadline.
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	return &Browser{ctx: ctx}
}

// Open loads a URL in a new tab, which is closed when the test ends.
func (b *Browser) Open(t testing.TB, url string) *Page {
	t.Helper()
	p := b.Blank(t)
	p.Go(t, url)
	return p
}

// Blank opens an empty tab, for settings before a page loads.
func (b *Browser) Blank(t testing.TB) *Page {
	t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	p := &Page{ctx: ctx, read: make(chan struct{})}
	messages := chromedp.Console(ctx) // subscribes now; opens the tab
	go func() {
		defer close(p.read)
		for m, err := range messages {
			if err != nil {
				return
			}
			p.mu.Lock()
			p.console = append(p.console, m.String())
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-p.read
	})
	return p
}
