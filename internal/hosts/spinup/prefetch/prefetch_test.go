package prefetch

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/platform/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is a host with images that a test adds and removes, on fake time;
// test/pull has a real one.
type host struct {
	mu     sync.Mutex
	there  map[string]bool
	down   error
	refuse error
	pulls  []string
	hangs  string // an image with a pull that ends only at its time limit
	events chan engine.Event
}

func newHost() *host { return &host{there: map[string]bool{}, events: make(chan engine.Event, 8)} }

func (h *host) ImageID(_ context.Context, ref string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.down != nil:
		return "", h.down
	case h.there[ref]:
		return "sha256:1", nil
	}
	return "", engine.ErrNoImage
}

func (h *host) Watch(ctx context.Context, _ engine.WatchOptions) iter.Seq[engine.Event] {
	return func(yield func(engine.Event) bool) {
		for yield(engine.Event{Gap: true}) {
			for {
				select {
				case ev := <-h.events:
					if !yield(ev) {
						return
					}
					continue
				case <-ctx.Done():
					return
				}
			}
		}
	}
}

func (h *host) pull(ctx context.Context, image string) error {
	if image == h.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pulls = append(h.pulls, image)
	if h.refuse == nil {
		h.there[image] = true
	}
	return h.refuse
}

func (h *host) pulled() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.pulls)
}

func (h *host) set(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	do()
}

func (h *host) keeper(t *testing.T, file string, images ...string) *Keeper {
	t.Helper()
	return New(Config{Prefetch: images, Check: 10 * time.Minute}, Deps{Engine: h, Pull: h.pull, File: file, Log: slog.New(slog.DiscardHandler)})
}

// run runs a keeper until the test's end, on fake time.
func run(t *testing.T, k *Keeper) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
}

func state(k *Keeper, name string) Entry {
	for _, i := range k.List() {
		if i.Image == name {
			return i
		}
	}
	return Entry{}
}

// Missing images are fetched at the start, when an image is deleted, and at the next check
// if the engine's event was lost. Present images are not pulled.
func TestKeepsImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		h.there["there:1"] = true
		k := h.keeper(t, filepath.Join(t.TempDir(), "list"), "there:1", "missing:1")
		run(t, k)
		if h.pulled() != 1 || h.pulls[0] != "missing:1" || state(k, "missing:1").State != Present {
			t.Fatalf("pulled %v, %+v", h.pulls, k.List())
		}
		h.set(func() { delete(h.there, "there:1") })
		h.events <- engine.Event{Action: "delete"}
		synctest.Wait()
		if h.pulled() != 2 || h.pulls[1] != "there:1" {
			t.Errorf("pulled %v after a deletion", h.pulls)
		}
		h.set(func() { delete(h.there, "there:1") })
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		if h.pulled() != 3 {
			t.Errorf("pulled %v after a look", h.pulls)
		}
	})
}

// A failed pull is tried again at growing intervals. While the engine is down, the state
// of the images is unknown.
func TestBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		h.refuse = errors.New("no such image")
		k := h.keeper(t, filepath.Join(t.TempDir(), "list"), "bad:1")
		run(t, k)
		if i := state(k, "bad:1"); i.State != Missing || i.Error != "no such image" || time.Until(i.Again) > 11*time.Second {
			t.Fatalf("%+v", i)
		}
		time.Sleep(4 * time.Hour)
		if n := h.pulled(); n < 15 || n > 30 {
			t.Errorf("%d tries in four hours", n)
		}
		// An event is no reason to try what just failed.
		before := h.pulled()
		h.events <- engine.Event{Action: "untag"}
		synctest.Wait()
		if h.pulled() != before {
			t.Error("it was tried at once")
		}
		// Naming the image again triggers a pull at once.
		h.set(func() { h.refuse = nil })
		if err := k.Add("bad:1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if i := state(k, "bad:1"); i.State != Present || i.Error != "" || !i.Again.IsZero() || !i.Fixed {
			t.Errorf("%+v", i)
		}
		h.set(func() { h.down = holdfast.ErrEngine })
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		if i := state(k, "bad:1"); i.State != Unknown || i.Error == "" {
			t.Errorf("%+v", i)
		}
	})
}

// A pull that hangs is cancelled, so that the images after it are fetched.
func TestPullThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		h.hangs = "hangs:1"
		k := h.keeper(t, filepath.Join(t.TempDir(), "list"), "hangs:1", "behind:1")
		run(t, k)
		time.Sleep(pullLimit)
		synctest.Wait()
		if i := state(k, "hangs:1"); i.State != Missing || i.Error == "" || i.Again.IsZero() {
			t.Errorf("%+v", i)
		}
		if i := state(k, "behind:1"); i.State != Present {
			t.Errorf("%+v", i)
		}
	})
}

// The list remains after the agent ends. The images of the configuration are not on it
// and cannot be removed.
func TestList(t *testing.T) {
	h := newHost()
	file := filepath.Join(t.TempDir(), "list")
	k := h.keeper(t, file, "fixed:1")
	if err := k.Add("a:1", "b:1", "a:1"); err != nil {
		t.Fatal(err)
	}
	if err := k.Remove("b:1"); err != nil {
		t.Fatal(err)
	}
	if err := k.Remove("a:1", "none:1"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Error(err)
	}
	if err := k.Remove("fixed:1"); !errors.Is(err, ErrFixed) || holdfast.HintOf(err) == "" {
		t.Error(err)
	}
	var bad *NameError
	if err := k.Add("c:1", "NO NAME"); !errors.As(err, &bad) {
		t.Error(err)
	}
	again := h.keeper(t, file, "fixed:1")
	var names []string
	for _, i := range again.List() {
		names = append(names, i.Image)
	}
	if got := strings.Join(names, " "); got != "fixed:1 a:1" {
		t.Errorf("the list is %q", got)
	}
	var many []string
	for i := range MaxImages {
		many = append(many, "many:"+strings.Repeat("x", i%100+1)+string(rune('a'+i/100)))
	}
	if err := k.Add(many...); !errors.Is(err, holdfast.ErrBusy) || len(k.List()) != 2 {
		t.Errorf("%v, %d images", err, len(k.List()))
	}
}

// A damaged or foreign list counts as empty.
func TestDamagedList(t *testing.T) {
	for _, text := range []string{"", "{", `{"images": ["NO NAME"]}`, `{"images": "a"}`, strings.Repeat("x", 2*maxFile)} {
		file := filepath.Join(t.TempDir(), "list")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		k := newHost().keeper(t, file)
		if len(k.List()) != 0 {
			t.Errorf("%.20q: %+v", text, k.List())
		}
		if err := k.Add("a:1"); err != nil {
			t.Fatal(err)
		}
		if names, err := ReadList(file); err != nil || len(names) != 1 {
			t.Errorf("%v, %v", names, err)
		}
	}
}

func TestConfig(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	for want, c := range map[string]Config{
		"check: ":    {Check: time.Millisecond},
		"prefetch: ": {Check: time.Hour, Prefetch: []string{"NO NAME"}},
	} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
