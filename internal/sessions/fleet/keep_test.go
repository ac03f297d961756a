package fleet

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast"
)

// A suspended session goes to a node that takes it. Nodes that refuse it, or drain, are passed
// over.
func TestHandOverSuspended(t *testing.T) {
	bubble(t, 4, func(t *testing.T, w *world) {
		had, refuses, drains, takes := w.nodes[0], w.nodes[1], w.nodes[2], w.nodes[3]
		s := holdfast.Suspended{Key: key, Epoch: 1, Node: had.id, Template: "shell"}
		refuses.keep = func(context.Context, holdfast.SessionKey, string) error {
			return fmt.Errorf("no: %w", holdfast.ErrNotFound)
		}
		drains.host.with(func() { drains.host.draining = true })
		var got string
		takes.keep = func(ctx context.Context, k holdfast.SessionKey, template string) error {
			time.Sleep(time.Minute) // longer than the drain lasts
			got = string(k) + " of " + template
			return ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if n, err := had.HandOverSuspended(ctx, s); err != nil || n != takes.id {
			t.Fatalf("%s, %v", n, err)
		}
		if got != "alice of shell" {
			t.Errorf("it took %q", got)
		}
		takes.keep = refuses.keep
		if n, err := had.HandOverSuspended(t.Context(), s); err == nil || n != "" {
			t.Errorf("%s, %v", n, err)
		}
		if err := (keepRequest{Key: "A", Template: "x"}).check(); err == nil || errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("%v", err)
		}
	})
}
