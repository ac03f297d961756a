package session

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
	"holdfast/test/poll"
)

// waiting is a warm pool with one container of the fake engine.
type waiting struct {
	id, name, address, dir string
	target                 *kill.Target
	taken                  bool
}

// fill starts the container, after the adoption, which ends such containers. Its directory is at
// dir.
func (w *waiting) fill(t *testing.T, fake *fakeEngine, tmpl Template, dir string) {
	t.Helper()
	w.name, w.dir = "holdfast-warm-1", dir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.id, err = fake.Create(t.Context(), tmpl.WarmSpec(holdfast.NodeID(t.Name()), w.name, dir, IdentityDir, "1")); err != nil {
		t.Fatal(err)
	}
	if err := fake.Start(t.Context(), w.id); err != nil {
		t.Fatal(err)
	}
	c, err := fake.Inspect(t.Context(), w.id)
	if err != nil {
		t.Fatal(err)
	}
	if w.address, err = address(c, tmpl); err != nil {
		t.Fatal(err)
	}
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	if w.target, err = opener.Open(c.ID, c.Name, c.Pid); err != nil {
		t.Fatal(err)
	}
}

func (w *waiting) Ready(string) bool { return !w.taken }
func (w *waiting) Take(string) (WarmContainer, bool) {
	taken := w.taken
	w.taken = true
	return w, !taken
}
func (w *waiting) ID() string           { return w.id }
func (w *waiting) Name() string         { return w.name }
func (w *waiting) Address() string      { return w.address }
func (w *waiting) Network() netip.Addr  { return netip.Addr{} }
func (w *waiting) Target() *kill.Target { return w.target }
func (w *waiting) Dir() string          { return w.dir }
func (w *waiting) Assign(context.Context, holdfast.Identity, []engine.Mount) (bool, error) {
	return false, errors.New("a sandbox is not assigned")
}

// received is an image that another node has sent.
type received struct{ *image }

func (received) Received(holdfast.SessionKey) bool { return true }

// A session's memory is restored in a sandbox. If that fails, the sandbox dies, and the memory
// goes to another container. Only without an image does the session boot fresh.
func TestSandboxes(t *testing.T) {
	for name, c := range map[string]struct {
		faults  []error // of the restores
		noDir   bool    // the sandbox cannot get its identity
		memory  string
		done    []string
		sandbox bool // the session is in it
	}{
		"restored":             {nil, false, holdfast.Restored, []string{"restore", "removed, restored true"}, true},
		"the sandbox is bad":   {[]error{errors.New("bad")}, false, holdfast.Restored, []string{"restore", "restore", "removed, restored true"}, false},
		"the image is bad":     {[]error{errors.New("bad"), errors.New("bad")}, false, "lost: its container could not be restored", []string{"restore", "restore", "removed, restored false", "plain start"}, false},
		"it gets no directory": {nil, true, holdfast.Restored, []string{"restore", "removed, restored true"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, kept := newFakeEngine(t), anywhere(t)
			t.Cleanup(fake.close)
			mv := received{&image{slow: quickly(), faults: c.faults}}
			kept.SaveMemory = true
			own := t.TempDir()
			w := &waiting{}
			n := newNode(t, setup{engine: fake, mover: mv, warm: w, cfg: Config{Templates: []Template{kept}, IdentityRoot: filepath.Join(own, "identity")}})
			w.fill(t, fake, kept, filepath.Join(own, "sandboxes", "1"))
			if c.noDir {
				if err := os.Remove(w.dir); err != nil {
					t.Fatal(err)
				}
			}
			fake.set(func() { fake.runtime = func(id string) error { return mv.start(id) } })
			i, err := n.Start(t.Context(), "a", "")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(i.Owner.Memory, c.memory) || (i.Owner.ContainerID == w.id) != c.sandbox {
				t.Errorf("the record says %q, want %q; it is in the sandbox: %v", i.Owner.Memory, c.memory, i.Owner.ContainerID == w.id)
			}
			if !slices.Equal(mv.done, c.done) {
				t.Errorf("%q, want %q", mv.done, c.done)
			}
			text, err := os.ReadFile(filepath.Join(n.identityDir(i.Owner), IdentityFile))
			if err != nil || !strings.Contains(string(text), `"session":"a"`) {
				t.Errorf("its identity is %q, %v", text, err)
			}
			if c.sandbox {
				return
			}
			poll.Until(t, "the engine reports the sandbox dead", func() bool {
				s, err := fake.Inspect(t.Context(), w.id)
				return err != nil || !s.Running()
			})
		})
	}
}

// stuck is an image that cannot be staged before the boot is cancelled.
type stuck struct{ received }

func (stuck) Stage(ctx context.Context, _ *holdfast.Owner, _ *holdfast.Suspended, _ string) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

// A session that is stopped while its image is staged for a sandbox ends, and so does the sandbox.
func TestStoppedBeforeTheSandbox(t *testing.T) {
	fake, kept := newFakeEngine(t), anywhere(t)
	t.Cleanup(fake.close)
	kept.SaveMemory = true
	own := t.TempDir()
	w := &waiting{}
	n := newNode(t, setup{engine: fake, mover: stuck{received{&image{slow: quickly()}}}, warm: w, cfg: Config{Templates: []Template{kept}, IdentityRoot: filepath.Join(own, "identity")}})
	w.fill(t, fake, kept, filepath.Join(own, "1"))
	ended := make(chan error, 1)
	go func() { _, err := n.Start(t.Context(), "a", ""); ended <- err }()
	poll.Until(t, "the session boots", func() bool { return len(n.records(t)) == 1 })
	if _, err := n.Stop(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the session was started")
	}
	n.empty(t)
	poll.Until(t, "the engine reports the sandbox dead", func() bool {
		s, err := fake.Inspect(t.Context(), w.id)
		return err != nil || !s.Running()
	})
}

// A session without memory does not take a sandbox.
func TestSandboxesAreForMemory(t *testing.T) {
	fake, kept := newFakeEngine(t), anywhere(t)
	t.Cleanup(fake.close)
	kept.SaveMemory = true
	w := &waiting{}
	mv := &image{slow: quickly(), ignore: true}
	fake.runtime = func(id string) error { return mv.start(id) }
	n := newNode(t, setup{engine: fake, mover: mv, warm: w, cfg: Config{Templates: []Template{kept}}})
	w.fill(t, fake, kept, filepath.Join(t.TempDir(), "1"))
	if _, err := n.Start(t.Context(), "a", ""); err != nil || w.taken {
		t.Errorf("%v; it has taken a sandbox: %v", err, w.taken)
	}
}
