package check

import (
	"fmt"
	"slices"
	"strings"

	"holdfast"
)

// Use records that a session's record named a container.
type Use struct {
	Container string // the engine's id, of one engine
	Key       holdfast.SessionKey
	Epoch     holdfast.Epoch
}

// HandedError has the containers of more than one claim.
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

// HandedOn proves that no container belonged to two claims, either of two sessions or of one
// session in two epochs: a pool gives each container to one session, and a used container to
// no other. It returns the number of containers. The error is ErrNothing or a *HandedError.
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
