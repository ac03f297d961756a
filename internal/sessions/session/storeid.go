package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/store"
)

// storeNote is the name of the note with a store's identity. It never changes.
const storeNote = "store-id"

// StoreID returns the identity of a store: a random text that the first agent writes, and
// that stays for the life of the store and its backups. It reports whether this call has
// written it.
func StoreID(ctx context.Context, s store.Store) (id string, made bool, err error) {
	n, err := s.TakeNote(ctx, storeNote, []byte(rand.Text()), 0)
	if err != nil && !errors.Is(err, store.ErrTaken) {
		return "", false, fmt.Errorf("identifying the store: %w", err)
	}
	return string(n.Value), err == nil, nil
}

// labelStore adds the label of the store.
func (t Template) labelStore(labels map[string]string) {
	if t.Store != "" {
		labels[LabelStore] = t.Store
	}
}

// OfOtherStore reports whether a container belongs to the agent of another store. A
// container of an earlier version, without the label, belongs to every store.
func OfOtherStore(c engine.Container, id string) bool {
	its := c.Labels[LabelStore]
	return its != "" && its != id
}

// ours removes the containers of other stores from a list: they are neither taken over
// nor killed.
func (m *Manager) ours(list []engine.Container) []engine.Container {
	return slices.DeleteFunc(list, func(c engine.Container) bool { return OfOtherStore(c, m.cfg.Store) })
}
