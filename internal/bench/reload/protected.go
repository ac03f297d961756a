package reload

import (
	"context"
	"time"
)

// protected changes HAProxy by `holdfast protect`, as people would.
type protected struct {
	x       *experiment
	backend string
}

func (p *protected) begin(ctx context.Context) (string, error) { return "not built yet", nil }

func (p *protected) change(ctx context.Context, c Change) (time.Duration, error) { return 0, nil }

func (p *protected) end(context.Context) error { return nil }
