package session

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/store"
	"holdfast/test/poll"
)

// A session that starts from the memory of another one has it, or does not start. A session
// whose request ended long ago boots fresh.
func TestChildIsNeverFresh(t *testing.T) {
	from := holdfast.MemorySnapshot{Name: "v1", Key: "parent", Epoch: 1, Template: "kept"}
	for name, c := range map[string]struct {
		until    time.Duration // of the note
		mover    func(*image) Mover
		template string // of the request
		fails    string // what the error of the boot says; "": it boots
		parent   holdfast.SessionKey
	}{
		"from its parent":     {time.Minute, func(i *image) Mover { return i }, "", "", "parent"},
		"without an image":    {time.Minute, func(i *image) Mover { return i.slow }, "", "it cannot start from the memory of session parent: it is a test's", ""},
		"of a bad image":      {time.Minute, func(i *image) Mover { i.faults = []error{errors.New("bad image")}; return i }, "", "could not be restored from its image: session a: start: bad image", ""},
		"by another runtime":  {time.Minute, func(i *image) Mover { i.ignore = true; return i }, "", "has started its container without its image", ""},
		"without a mover":     {time.Minute, func(*image) Mover { return nil }, "", "its memory cannot be kept", ""},
		"of another template": {time.Minute, func(i *image) Mover { return i }, "web", "the image was of template kept", ""},
		"much later":          {-time.Minute, func(i *image) Mover { return i.slow }, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFakeEngine(t)
			first, kept := anywhere(t), anywhere(t)
			first.Name, kept.Name, kept.SaveMemory, kept.Fork = "web", "kept", true, true
			mv := &image{slow: quickly()}
			fake.runtime = mv.start
			n := newNode(t, setup{engine: fake, mover: c.mover(mv), cfg: Config{Templates: []Template{first, kept}}})
			t.Cleanup(fake.close)
			text, err := json.Marshal(holdfast.Suspended{Key: "a", Template: "kept", Until: time.Now().Add(c.until), From: &from})
			if err != nil {
				t.Fatal(err)
			}
			if err := n.store.PutNote(t.Context(), store.SuspendedNotes+"a", text, 0); err != nil {
				t.Fatal(err)
			}
			i, err := n.Start(t.Context(), "a", c.template)
			switch {
			case c.fails == "" && (err != nil || i.Owner.Parent != c.parent || (i.Owner.Memory == holdfast.Restored) != (c.parent != "")):
				t.Errorf("%+v, %v", i.Owner, err)
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("it says %v, want %q", err, c.fails)
			}
			if len(n.notes(t)) != 0 {
				t.Errorf("notes are left: %v", n.notes(t))
			}
			want := 1
			if c.fails != "" {
				want = 0
			}
			poll.Until(t, "the containers are those that should run", func() bool { return len(fake.running()["a"]) == want })
			if bad := fake.wrong(); len(bad) > 0 {
				t.Errorf("problems %q", bad)
			}
		})
	}
}

// renewing is an engine that runs the command renew.
type renewing struct {
	*fakeEngine
	code int
	env  []string
}

func (r *renewing) Exec(_ context.Context, _ string, e engine.Exec) (int, error) {
	r.env = e.Env
	_, err := e.Stderr.Write([]byte("no entropy"))
	return r.code, err
}

// A child runs the template's command before it is ready, and does not start if that fails. A
// session that is no child does not run it.
func TestRenew(t *testing.T) {
	for code := range 2 {
		fake, kept := newFakeEngine(t), anywhere(t)
		kept.SaveMemory, kept.Fork, kept.Renew = true, true, Renew{Command: []string{"/renew"}, Timeout: time.Minute}
		mv := &image{slow: quickly()}
		fake.runtime = mv.start
		e := &renewing{fakeEngine: fake, code: code}
		n := newNode(t, setup{engine: e, mover: mv, cfg: Config{Templates: []Template{kept}, IdentityRoot: t.TempDir()}})
		t.Cleanup(fake.close)
		if _, err := n.Start(t.Context(), "other", ""); err != nil || e.env != nil {
			t.Errorf("no child: %v, %v", e.env, err)
		}
		from := holdfast.MemorySnapshot{Name: "v1", Key: "parent", Epoch: 1, Template: kept.Name}
		text, err := json.Marshal(holdfast.Suspended{Key: "a", Template: kept.Name, Until: time.Now().Add(time.Minute), From: &from})
		if err == nil {
			err = n.store.PutNote(t.Context(), store.SuspendedNotes+"a", text, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		i, err := n.Start(t.Context(), "a", "")
		if failed := code != 0; (err != nil) != failed || failed && !strings.Contains(err.Error(), `the command renew: exit code 1: "no entropy"`) {
			t.Errorf("exit code %d: %v", code, err)
		}
		for _, want := range []string{"HOLDFAST_SESSION=a", "HOLDFAST_PARENT=parent"} {
			if !slices.Contains(e.env, want) {
				t.Errorf("%s is missing in %q", want, e.env)
			}
		}
		if code > 0 {
			continue
		}
		text, err = os.ReadFile(filepath.Join(n.identityDir(i.Owner), GenerationFile))
		if g := strings.TrimSuffix(string(text), "\n"); err != nil || len(g) != 32 || !slices.Contains(e.env, "HOLDFAST_GENERATION="+g) {
			t.Errorf("the file has %q, %v; the command got %q", text, err, e.env)
		}
	}
}
