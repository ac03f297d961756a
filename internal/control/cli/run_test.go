package cli

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/hosts/job"
	"holdfast/internal/platform/engine"
)

// hanging is an engine that does not answer.
type hanging struct{ job.Cleaner }

func (hanging) Networks(ctx context.Context, _ map[string]string) ([]engine.Network, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A finished command waits only some seconds for the removal of what other jobs left,
// and prints no warning when it stops the removal.
func TestSweepEndsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		a := &app{ui: newUI(nil, &said, &said)}
		end := a.beginSweep(t.Context(), hanging{}, job.Owner{})
		begun := time.Now()
		end()
		if took := time.Since(begun); took != sweepGrace || said.Len() > 0 {
			t.Errorf("it took %v and said %q", took, &said)
		}
	})
}
