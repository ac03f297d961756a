package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"holdfast"
)

// image is a mover with an image for every claim, and a runtime that restores from it as
// runsc's script does.
type image struct {
	*slow
	faults []error // of the restores, in their order; nil: it succeeds
	ignore bool    // the runtime does not know images

	mu   sync.Mutex
	at   string // the container that the image is staged for
	used bool
	done []string // what was done with the image
}

func (i *image) Stage(_ context.Context, _ *holdfast.Owner, _ *holdfast.Suspended, container string) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.at, i.used, i.done = container, false, nil
	return true, nil
}

func (i *image) Used(container string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.at == container && i.used
}

func (*image) Received(holdfast.SessionKey) bool { return false }

// RestoreHeld restores a sandbox, with the result that start gives for a container.
func (i *image) RestoreHeld(_ context.Context, container string, _ int) error {
	return i.start(container)
}

func (i *image) Restage(from, to string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.at != from {
		return errors.New("the image is gone")
	}
	i.at, i.used = to, false
	return nil
}

func (i *image) Unstage(container string, restored bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.at == container {
		i.at = ""
	}
	i.done = append(i.done, fmt.Sprintf("removed, restored %v", restored))
}

// start is the runtime's start of a container.
func (i *image) start(id string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ignore || i.at != id || i.used {
		i.done = append(i.done, "plain start")
		return nil
	}
	i.used = true
	i.done = append(i.done, "restore")
	if len(i.faults) == 0 {
		return nil
	}
	err := i.faults[0]
	i.faults = i.faults[1:]
	return err
}

// An engine that fails during a restore does not make the session lose its memory, and
// never makes a start without memory count as a restore.
func TestRestoreIsInterrupted(t *testing.T) {
	dies := fmt.Errorf("start: EOF: %w", holdfast.ErrEngine)
	for name, c := range map[string]struct {
		faults []error
		ignore bool
		lose   bool   // the answer to the create of the first replacement is lost
		memory string // beginning of what the record says
		done   []string
	}{
		"not":                                   {nil, false, false, holdfast.Restored, []string{"restore", "removed, restored true"}},
		"once":                                  {[]error{dies}, false, false, holdfast.Restored, []string{"restore", "restore", "removed, restored true"}},
		"twice":                                 {[]error{dies, dies}, false, false, "lost: its container could not be restored", []string{"restore", "restore", "removed, restored false", "plain start"}},
		"the image is bad":                      {[]error{errors.New("bad image")}, false, false, "lost: its container could not be restored", []string{"restore", "removed, restored false", "plain start"}},
		"another runtime":                       {nil, true, false, "lost: the engine has started its container without its image", []string{"plain start", "removed, restored false"}},
		"once, then it is bad":                  {[]error{dies, errors.New("bad image")}, false, false, "lost: its container could not be restored", []string{"restore", "restore", "removed, restored false", "plain start"}},
		"once, and the next one is not created": {[]error{dies}, false, true, "lost: its container could not be restored", []string{"restore", "removed, restored false", "plain start"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, kept := newFakeEngine(t), anywhere(t)
			mv := &image{slow: quickly(), faults: c.faults, ignore: c.ignore}
			fake.runtime = func(id string) error {
				err := mv.start(id)
				if err != nil && c.lose {
					fake.lose["create"] = true
				}
				return err
			}
			kept.SaveMemory = true
			deadman := &recorder{fake: fake}
			n := newNode(t, setup{engine: fake, mover: mv, dead: deadman, cfg: Config{Templates: []Template{kept}}})
			t.Cleanup(fake.close)
			i, err := n.Start(t.Context(), "a", "")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(i.Owner.Memory, c.memory) {
				t.Errorf("the record says %q, want %q", i.Owner.Memory, c.memory)
			}
			if !slices.Equal(mv.done, c.done) {
				t.Errorf("%q, want %q", mv.done, c.done)
			}
			if bad := fake.wrong(); len(bad) > 0 || len(fake.running()["a"]) != 1 {
				t.Errorf("problems %q, running %v", bad, fake.running())
			}
			deadman.mu.Lock()
			defer deadman.mu.Unlock()
			if len(deadman.held) != 1 || !deadman.held[i.Owner.ContainerID] {
				t.Errorf("the deadman has %v, and %s runs", deadman.held, i.Owner.ContainerID)
			}
		})
	}
}
