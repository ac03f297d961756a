package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/store"
)

// Memory is restored only under the epoch that follows its own. A claim by an agent of
// this version removes the note of a suspended session, but one by an agent without
// support for suspended sessions leaves it. The node that keeps an image therefore
// watches all claims from the suspension on. A file has the revision up to which it has
// done so, for the next agent of the node. If the store has forgotten what came after that
// revision, the memory is lost.

// probeKey is a key of which Follows is asked, to learn whether the store still has a part
// of its history.
const probeKey = holdfast.SessionKey("probe")

// lostUnseen is why an image is lost that was not watched.
const lostUnseen = "its node has run no agent that knows suspended sessions, for longer than the store remembers"

// seen is the revision up to which this node has seen the claims of its suspended sessions.
type seen struct {
	file string            // "": it is not kept
	last holdfast.Revision // of the last check; one interval later everything before is seen
}

// read returns the revision, and 0 if there is no file: then no agent of this version has
// run on the node.
func (s *seen) read() (at holdfast.Revision, err error) {
	text, err := os.ReadFile(s.file)
	if s.file == "" || errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &at)
	}
	return at, err
}

// write writes the revision of the last check, and now becomes the last one.
func (s *seen) write(now holdfast.Revision) (err error) {
	if s.file != "" && s.last > 0 {
		err = atomicfile.Write(s.file, fmt.Append(nil, s.last), 0o600)
	}
	s.last = now
	return err
}

// beginWatch adds what an earlier agent of this node has suspended to the index, and
// returns the changes from the revision on that it has seen.
func (m *Mover) beginWatch(ctx context.Context) (<-chan store.Event, error) {
	_, now, err := m.o.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	after, readErr := m.seen.read()
	if after == 0 && readErr == nil {
		after = now
	}
	if readErr == nil && after < now {
		_, err = m.o.Store.Follows(ctx, probeKey, holdfast.Epoch(after), holdfast.Epoch(now))
	}
	if readErr != nil || after > now || errors.Is(err, store.ErrForgotten) {
		after, err = now, m.loseUnseen(ctx)
	}
	if err == nil {
		err = m.indexSuspended(ctx)
	}
	if err != nil {
		return nil, err
	}
	m.seen.last = after
	changes := m.o.Store.Watch(ctx, after)
	m.suspendeds.begin()
	return changes, nil
}

// loseUnseen removes this node's images, and leaves the reason to the next claims of the
// sessions.
func (m *Mover) loseUnseen(ctx context.Context) error {
	all, err := ListSuspended(ctx, m.o.Store)
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Node != m.o.Node || r.Lost != "" || r.From != nil {
			continue
		}
		_ = m.Drop(ctx, r, superseded) // it is logged
		r.Lost = lostUnseen
		text, err := json.Marshal(r.Suspended)
		if err == nil {
			err = m.o.Store.PutNote(ctx, r.Note.Name, text, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// suspendedIndex lists the sessions whose images this node keeps.
type suspendedIndex struct {
	claims chan claim    // of sessions in the index
	begun  chan struct{} // closed when the index has what an earlier agent suspended

	mu   sync.Mutex // held briefly: Claimed must not block
	kept map[holdfast.SessionKey]*keptImage
}

// keptImage is an image on this node.
type keptImage struct {
	epoch   holdfast.Epoch
	claims  []holdfast.Epoch // the last after epoch, the oldest first, maxClaims at most
	removed bool
	changed chan struct{} // closed, and replaced, with each claim, and closed when the image was removed
}

// maxClaims bounds the claims of a session that ended before they had taken its image.
const maxClaims = 64

// change wakes those that wait for a claim.
func (k *keptImage) change() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// claim is the claim of a session that was suspended.
type claim struct {
	key   holdfast.SessionKey
	epoch holdfast.Epoch
}

func newSuspendedIndex() *suspendedIndex {
	return &suspendedIndex{claims: make(chan claim, claimQueue), begun: make(chan struct{}), kept: map[holdfast.SessionKey]*keptImage{}}
}

func (x *suspendedIndex) begin() { close(x.begun) }

func (x *suspendedIndex) add(key holdfast.SessionKey, epoch holdfast.Epoch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.kept[key]
	if k != nil && k.epoch >= epoch {
		return
	}
	if k != nil {
		k.removed = true
		k.change()
	}
	x.kept[key] = &keptImage{epoch: epoch, changed: make(chan struct{})}
}

func (x *suspendedIndex) drop(key holdfast.SessionKey, epoch holdfast.Epoch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.kept[key]
	if k == nil || k.epoch != epoch {
		return
	}
	delete(x.kept, key)
	k.removed = true
	k.change()
}

// claimed records the claims of a session after it was suspended.
func (x *suspendedIndex) claimed(key holdfast.SessionKey, epoch holdfast.Epoch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.kept[key]
	if k == nil || epoch <= k.epoch || len(k.claims) > 0 && epoch <= k.claims[len(k.claims)-1] {
		return
	}
	k.claims = append(k.claims[max(0, len(k.claims)+1-maxClaims):], epoch)
	k.change()
	select {
	case x.claims <- claim{key, epoch}:
	default: // sweep finds it while the session has an owner
	}
}

// follows returns an error if the claim next is not the first one after last, which is the epoch
// of the suspension, or that of a claim that has not taken the image. It waits until this node
// has seen the claim. A session that is not in the index has no note any more: the claim of an
// agent of this version has removed it.
func (x *suspendedIndex) follows(ctx context.Context, key holdfast.SessionKey, epoch, last, next holdfast.Epoch) error {
	select {
	case <-x.begun:
	case <-ctx.Done():
		return fmt.Errorf("this node has not looked through its suspended sessions yet: %w", ctx.Err())
	}
	x.mu.Lock()
	k := x.kept[key]
	if k == nil || k.epoch != epoch {
		x.mu.Unlock()
		return nil
	}
	for {
		first, removed, changed := k.firstAfter(last), k.removed, k.changed
		x.mu.Unlock()
		switch {
		case removed:
			return fmt.Errorf("the image of epoch %d was removed", epoch)
		case first == next:
			x.drop(key, epoch)
			return nil
		case first != 0:
			return fmt.Errorf("it was running at epoch %d, after it was suspended at epoch %d", first, epoch)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("this node has not seen the claim at epoch %d: %w", next, ctx.Err())
		}
		x.mu.Lock()
	}
}

// firstAfter returns the epoch of the first claim after last, 0 if there is none.
func (k *keptImage) firstAfter(last holdfast.Epoch) holdfast.Epoch {
	for _, c := range k.claims {
		if c > last {
			return c
		}
	}
	return 0
}
