package docker

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"holdfast/internal/engine"
)

// Pull fetches an image and yields the engine's lines, ending with the first
// error.
func (e *Engine) Pull(ctx context.Context, ref string) iter.Seq2[engine.PullEvent, error] {
	return func(yield func(engine.PullEvent, error) bool) {
		// The end of the request is what makes the engine stop.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := e.api.ImagePull(ctx, ref, client.ImagePullOptions{})
		if err != nil {
			yield(engine.PullEvent{}, e.fail(ctx, err, "pull image %s", ref))
			return
		}
		defer stream.Close()
		for m, err := range stream.JSONMessages(ctx) {
			if err == nil && m.Error != nil {
				err = m.Error
			}
			if err != nil {
				yield(engine.PullEvent{}, e.fail(ctx, err, "pull image %s", ref))
				return
			}
			if !yield(pullEvent(m), nil) {
				return
			}
		}
	}
}

func pullEvent(m jsonstream.Message) engine.PullEvent {
	ev := engine.PullEvent{Time: time.Now(), Layer: m.ID, Status: m.Status}
	// The first line has the tag as its id.
	if strings.HasPrefix(m.Status, "Pulling from ") {
		ev.Layer = ""
	}
	if m.Progress != nil {
		ev.Current, ev.Total = m.Progress.Current, m.Progress.Total
	}
	return ev
}
