package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Names of the notes of a group.
const (
	recordNotes = "groups/"
	keeperNotes = "groups-keeper/"
)

// read returns a group's record. holdfast.ErrNotFound.
func (g *Groups) read(ctx context.Context, name string) (holdfast.Group, error) {
	n, err := store.FindNote(ctx, g.deps.Store, recordNotes+name)
	if err != nil {
		return holdfast.Group{}, named(name, err)
	}
	return decode(n)
}

// named says which group was not found, instead of which note.
func named(group string, err error) error {
	if errors.Is(err, holdfast.ErrNotFound) {
		return fmt.Errorf("group %s: %w", group, holdfast.ErrNotFound)
	}
	return err
}

func decode(n store.Note) (holdfast.Group, error) {
	var one holdfast.Group
	if err := json.Unmarshal(n.Value, &one); err != nil {
		return one, fmt.Errorf("record %s: %w", n.Name, err)
	}
	return one, nil
}

// create writes the record of a new group. A record that is there stays.
func (g *Groups) create(ctx context.Context, one holdfast.Group) error {
	value, err := json.Marshal(one)
	if err != nil {
		return err
	}
	_, err = g.deps.Store.TakeNote(ctx, recordNotes+one.Name, value, 0)
	if errors.Is(err, store.ErrTaken) {
		return nil
	}
	return err
}

// change changes a record by f, as store.ChangeNote does.
func (g *Groups) change(ctx context.Context, name string, f func(*holdfast.Group) error) error {
	one, err := store.ChangeNote(ctx, g.deps.Store, recordNotes+name, f)
	if err != nil {
		return named(name, err)
	}
	g.learn(one)
	return nil
}

// Groups returns the records of all groups of the store, by name.
func (g *Groups) Groups(ctx context.Context) ([]holdfast.Group, error) {
	notes, err := g.deps.Store.ListNotes(ctx, recordNotes)
	if err != nil {
		return nil, fmt.Errorf("listing groups: %w", err)
	}
	all := make([]holdfast.Group, 0, len(notes))
	for _, n := range notes {
		one, err := decode(n)
		if err != nil {
			g.deps.Log.Warn("a group's record cannot be read", "err", err)
			continue
		}
		all = append(all, one)
	}
	return all, nil
}
