package puller

import (
	"context"
	"time"

	"holdfast/internal/platform/engine"
)

// infoLimit bounds a query of the engine's info.
const infoLimit = 10 * time.Second

// asked caches the engine's info.
type asked struct {
	slot chan *engine.Info // one element, taken by the caller that queries: nil until there is an answer
}

func newAsked() asked {
	a := asked{slot: make(chan *engine.Info, 1)}
	a.slot <- nil
	return a
}

// get returns the cached info, or queries it.
func (a asked) get(ctx context.Context, ask func(context.Context) (engine.Info, error)) (engine.Info, error) {
	select {
	case known := <-a.slot:
		defer func() { a.slot <- known }()
		if known != nil {
			return *known, nil
		}
		info, err := ask(ctx)
		if err != nil {
			return engine.Info{}, err
		}
		known = &info
		return info, nil
	case <-ctx.Done():
		return engine.Info{}, ctx.Err()
	}
}

// asking is a running query.
type asking struct {
	done chan struct{}
	info engine.Info // valid after done; the zero value if there was no answer
}

// ask queries the engine's info in the background. The caller must wait for the
// answer in the end.
func (p *Puller) ask(ctx context.Context) *asking {
	q := &asking{done: make(chan struct{})}
	go func() {
		defer close(q.done)
		ctx, cancel := context.WithTimeout(ctx, infoLimit)
		defer cancel()
		info, err := p.info.get(ctx, p.c.Engine.Info)
		if err != nil {
			p.c.Log.Debug("reading the engine's info", "error", err)
			return
		}
		q.info = info
	}()
	return q
}

// wait returns the answer, the zero value if there was none.
func (q *asking) wait() engine.Info {
	<-q.done
	return q.info
}
