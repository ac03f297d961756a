package puller

import (
	"context"
	"time"

	"holdfast/internal/platform/engine"
)

// infoLimit bounds a query of the engine's info.
const infoLimit = 10 * time.Second

// engineInfo returns the engine's info. It queries the engine until the engine has
// answered once.
func (p *Puller) engineInfo(ctx context.Context) (engine.Info, error) {
	if known := p.known.Load(); known != nil {
		return *known, nil
	}
	info, err := p.info.Get(ctx)
	if err == nil {
		p.known.Store(&info)
	}
	return info, err
}

// infoQuery is a running query.
type infoQuery struct {
	done chan struct{}
	info engine.Info // valid after done; the zero value if there was no answer
}

// ask queries the engine's info in the background. The caller must wait for the
// answer in the end.
func (p *Puller) ask(ctx context.Context) *infoQuery {
	q := &infoQuery{done: make(chan struct{})}
	go func() {
		defer close(q.done)
		ctx, cancel := context.WithTimeout(ctx, infoLimit)
		defer cancel()
		info, err := p.engineInfo(ctx)
		if err != nil {
			p.c.Log.Debug("reading the engine's info", "error", err)
			return
		}
		q.info = info
	}()
	return q
}

// wait returns the answer, the zero value if there was none.
func (q *infoQuery) wait() engine.Info {
	<-q.done
	return q.info
}
