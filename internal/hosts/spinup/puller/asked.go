package puller

import (
	"context"
	"time"

	"holdfast/internal/platform/engine"
)

// infoLimit bounds how long the engine is asked what it is.
const infoLimit = 10 * time.Second

// asked is what the engine said that it is, once it has.
type asked struct {
	slot chan *engine.Info // one element, taken by who asks: nil until there is an answer
}

func newAsked() asked {
	a := asked{slot: make(chan *engine.Info, 1)}
	a.slot <- nil
	return a
}

// get asks, or returns what was answered before.
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

// asking is a question that is under way.
type asking struct {
	done chan struct{}
	info engine.Info // valid after done; the zero value where there was no answer
}

// ask asks the engine what it is while others go on. Whoever calls it waits for
// the answer in the end.
func (p *Puller) ask(ctx context.Context) *asking {
	q := &asking{done: make(chan struct{})}
	go func() {
		defer close(q.done)
		ctx, cancel := context.WithTimeout(ctx, infoLimit)
		defer cancel()
		info, err := p.info.get(ctx, p.c.Engine.Info)
		if err != nil {
			p.c.Log.Debug("what the engine is", "error", err)
			return
		}
		q.info = info
	}()
	return q
}

// wait returns the answer, the zero value where there was none.
func (q *asking) wait() engine.Info {
	<-q.done
	return q.info
}
