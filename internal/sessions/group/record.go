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

// swaps is how often a write is tried that other writers come before. Each group has one
// keeper, and commands are rare.
const swaps = 20

// read returns a group's record and its note. holdfast.ErrNotFound.
func (g *Groups) read(ctx context.Context, name string) (holdfast.Group, store.Note, error) {
	n, err := store.FindNote(ctx, g.deps.Store, recordNotes+name)
	if errors.Is(err, holdfast.ErrNotFound) {
		err = fmt.Errorf("group %s: %w", name, holdfast.ErrNotFound)
	}
	if err != nil {
		return holdfast.Group{}, store.Note{}, err
	}
	one, err := decode(n)
	return one, n, err
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

// change reads a record, changes it and writes it, and repeats that if another writer came
// before. If f returns an error, nothing is written. After an error of the store the record
// may be either.
func (g *Groups) change(ctx context.Context, name string, f func(*holdfast.Group) error) error {
	for n := 0; ; n++ {
		one, note, err := g.read(ctx, name)
		if err != nil {
			return err
		}
		if err := f(&one); err != nil {
			return err
		}
		value, err := json.Marshal(one)
		if err != nil {
			return err
		}
		if _, err = g.deps.Store.SwapNote(ctx, note, value); err == nil {
			g.learn(one)
			return nil
		}
		if !errors.Is(err, store.ErrStale) || n == swaps {
			return fmt.Errorf("group %s: %w", name, err)
		}
	}
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
