package check

import (
	"fmt"
	"slices"
	"strings"

	"holdfast"
)

// Use is that a session's record named a container as the one that serves it.
type Use struct {
	Container string // the engine's id, of one engine
	Key       holdfast.SessionKey
	Epoch     holdfast.Epoch
}

// HandedError names containers that more than one claim had.
type HandedError struct {
	Uses map[string][]Use // by container, each claim once
}

func (e *HandedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d containers were of more than one claim", len(e.Uses))
	ids := make([]string, 0, len(e.Uses))
	for id := range e.Uses {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids[:min(evidenceShown, len(ids))] {
		fmt.Fprintf(&b, "\n  %.12s:", id)
		for _, u := range e.Uses[id] {
			fmt.Fprintf(&b, " %s epoch %d", u.Key, u.Epoch)
		}
	}
	return b.String()
}

// HandedOn proves that no container was ever of two claims, neither of two sessions
// nor of one session one after the other: what was ready before its session came was
// given once, and nothing that a session has used was given again. It returns how many
// containers there were. The error is ErrNothing or a *HandedError.
func HandedOn(uses []Use) (containers int, err error) {
	of := map[string][]Use{}
	for _, u := range uses {
		if u.Container != "" && !slices.Contains(of[u.Container], u) {
			of[u.Container] = append(of[u.Container], u)
		}
	}
	containers = len(of)
	if containers == 0 {
		return 0, fmt.Errorf("containers handed on: %w", ErrNothing)
	}
	for id, claims := range of {
		if len(claims) == 1 {
			delete(of, id)
		}
	}
	if len(of) > 0 {
		return containers, &HandedError{Uses: of}
	}
	return containers, nil
}
