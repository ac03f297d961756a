// Package fork starts sessions from the memory of another one: at once, or from a snapshot with
// a name.
//
// A child is claimed and booted like any other session. What its claim receives is the note
// that a suspended session leaves, here with the name of the snapshot. The note is written only
// if the key is free, and the claim removes it in the same write: a key never has two
// containers, and a snapshot is restored only by the claims that it was meant for.
package fork

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/move"
)

const (
	// startTime is how long a claim of a child may receive its note. The note of a request that
	// ended without removing it has no effect after that.
	startTime = 2 * time.Minute
	// dropTime bounds the removal of a note whose request has ended.
	dropTime = 5 * time.Second
)

// Forker copies sessions and starts others from the copies. Any goroutine may call its methods.
type Forker struct {
	Store store.Store
	Keep  time.Duration // lifetime of a snapshot if none is asked for
	// Copy and Start are the session manager's and the fleet's.
	Copy  func(context.Context, holdfast.SessionKey, holdfast.MemorySnapshot) (holdfast.MemorySnapshot, error)
	Start func(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Owner, error)
	Mover *move.Mover // nil: this node has no images

	taking sync.Mutex // one snapshot is taken at a time: its name is free until it has a record
}

// TakeSnapshot copies a session of this node, which goes on. life is how long the snapshot is
// kept; 0 is Keep. Errors: holdfast.ErrExists, holdfast.ErrNotFound, holdfast.ErrNoMemory.
func (f *Forker) TakeSnapshot(ctx context.Context, key, name holdfast.SessionKey, life time.Duration) (s holdfast.MemorySnapshot, err error) {
	if life == 0 {
		life = f.Keep
	}
	f.taking.Lock()
	defer f.taking.Unlock()
	switch _, err := f.find(ctx, name); {
	case err == nil:
		return s, nameTaken(name)
	case !errors.Is(err, holdfast.ErrNotFound):
		return s, err
	}
	if s, err = f.Copy(ctx, key, holdfast.MemorySnapshot{Name: name, Until: time.Now().UTC().Add(life)}); err != nil {
		return s, err
	}
	text, err := json.Marshal(s)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, move.SnapshotGrace/2)
		defer cancel()
		_, err = f.Store.TakeNote(ctx, store.SnapshotNotes+string(name), text, 0)
	}
	if errors.Is(err, store.ErrTaken) {
		return s, errors.Join(nameTaken(name), f.Mover.DropSnapshot(ctx, move.SnapshotRecord{MemorySnapshot: s}))
	}
	return s, err // an image without a record is removed later
}

func nameTaken(name holdfast.SessionKey) error {
	return holdfast.WithHint(fmt.Errorf("snapshot %s: %w", name, holdfast.ErrExists), fmt.Sprintf("choose another name, or remove it: holdfast session snapshots rm %s", name))
}

// Snapshots lists the snapshots of all nodes, by name.
func (f *Forker) Snapshots(ctx context.Context) ([]holdfast.MemorySnapshot, error) {
	all, err := move.ListSnapshots(ctx, f.Store)
	out := make([]holdfast.MemorySnapshot, 0, len(all))
	for _, r := range all {
		out = append(out, r.MemorySnapshot)
	}
	return out, err
}

// find returns the record of a snapshot. holdfast.ErrNotFound.
func (f *Forker) find(ctx context.Context, name holdfast.SessionKey) (r move.SnapshotRecord, err error) {
	r.Note, err = store.FindNote(ctx, f.Store, store.SnapshotNotes+string(name))
	if err == nil {
		err = json.Unmarshal(r.Note.Value, &r.MemorySnapshot)
	}
	if errors.Is(err, holdfast.ErrNotFound) {
		return r, holdfast.WithHint(fmt.Errorf("snapshot %s: %w", name, holdfast.ErrNotFound), "`holdfast session snapshots` lists them")
	}
	if err != nil {
		return r, fmt.Errorf("snapshot %s: %w", name, err)
	}
	return r, nil
}

// RemoveSnapshot removes a snapshot. Sessions that have started from it go on. Another node
// that has the image removes it when it sees no record.
// holdfast.ErrNotFound.
func (f *Forker) RemoveSnapshot(ctx context.Context, name holdfast.SessionKey) error {
	r, err := f.find(ctx, name)
	if err != nil {
		return err
	}
	if f.Mover == nil {
		return f.Store.DropNote(ctx, r.Note)
	}
	return f.Mover.DropSnapshot(ctx, r)
}

// StartFrom starts a session from a snapshot, and returns when it is ready. Errors:
// holdfast.ErrNotFound for the snapshot; holdfast.ErrExists if the session exists;
// *holdfast.BootError.
func (f *Forker) StartFrom(ctx context.Context, key, name holdfast.SessionKey) (holdfast.Owner, error) {
	r, err := f.find(ctx, name)
	if err != nil {
		return holdfast.Owner{}, err
	}
	return f.start(ctx, key, r.MemorySnapshot)
}

// Fork copies a session of this node, and starts the children from the copy. It returns when
// all of them are ready or have failed; the report says which. Errors: holdfast.ErrExists if
// one of the children exists, and those of the copy; then nothing was started.
func (f *Forker) Fork(ctx context.Context, key holdfast.SessionKey, children []holdfast.SessionKey) (r holdfast.ForkReport, err error) {
	begun := time.Now()
	if err := f.free(ctx, children); err != nil {
		return r, err
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it returns no error (crypto/rand)
	name := holdfast.SessionKey("fork-" + hex.EncodeToString(id))
	if r.MemorySnapshot, err = f.Copy(ctx, key, holdfast.MemorySnapshot{Name: name}); err != nil {
		return r, err
	}
	defer f.Mover.DropCopy(name)
	r.Children = make([]holdfast.Forked, len(children))
	var all sync.WaitGroup
	for i, child := range children {
		all.Go(func() {
			o, err := f.start(ctx, child, r.MemorySnapshot)
			c := holdfast.Forked{Key: child, Node: o.Node, Epoch: o.Epoch, Took: holdfast.Millis(time.Since(begun))}
			if err != nil {
				c.Error = err.Error()
			}
			r.Children[i] = c
		})
	}
	all.Wait()
	r.Took = holdfast.Millis(time.Since(begun))
	return r, nil
}

// free returns an error if one of the sessions exists.
func (f *Forker) free(ctx context.Context, keys []holdfast.SessionKey) error {
	owners, err := f.Store.Find(ctx, keys...)
	if err != nil {
		return err
	}
	for _, o := range owners {
		return exists(o.Key, "it runs")
	}
	suspended, err := move.ListSuspended(ctx, f.Store)
	if err != nil {
		return err
	}
	for _, s := range suspended {
		for _, key := range keys {
			if s.Key == key {
				return exists(key, "it is suspended")
			}
		}
	}
	return nil
}

func exists(key holdfast.SessionKey, why string) error {
	return holdfast.WithHint(fmt.Errorf("session %s: %s: %w", key, why, holdfast.ErrExists), "choose another key, or stop the session first")
}

// start starts one child.
func (f *Forker) start(ctx context.Context, key holdfast.SessionKey, s holdfast.MemorySnapshot) (o holdfast.Owner, err error) {
	now := time.Now().UTC()
	text, err := json.Marshal(holdfast.Suspended{Key: key, Node: s.Node, Shared: s.Shared, Template: s.Template, TakenAt: now, Until: now.Add(startTime), Bytes: s.Bytes, From: &s})
	if err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	note, err := f.Store.TakeNote(ctx, store.SuspendedNotes+string(key), text, 0)
	if errors.Is(err, store.ErrTaken) {
		return o, exists(key, "it is suspended")
	}
	if err != nil {
		return o, err
	}
	defer func() { // if no claim has received it
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTime)
		defer cancel()
		_ = f.Store.DropNote(ctx, note) // after an error it has no effect any more after startTime
	}()
	if _, err := f.Store.Get(ctx, key); err == nil {
		// A claim of before the note has not received it; one of after it has.
		if _, err := store.FindNote(ctx, f.Store, note.Name); !errors.Is(err, holdfast.ErrNotFound) {
			return o, exists(key, "it runs")
		}
	}
	if o, err = f.Start(ctx, key, ""); err != nil {
		return o, err
	}
	if o.Parent != s.Key || o.Snapshot != s.Name {
		return o, holdfast.WithHint(fmt.Errorf("session %s was started without the memory of session %s: %w", key, s.Key, holdfast.ErrBusy), "stop it, and start it again")
	}
	return o, nil
}
