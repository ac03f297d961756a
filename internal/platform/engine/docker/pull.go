package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"holdfast/internal/platform/engine"
)

// Pull fetches an image and yields the engine's lines, up to the first error.
func (e *Engine) Pull(ctx context.Context, ref string, o engine.PullOptions) iter.Seq2[engine.PullEvent, error] {
	return func(yield func(engine.PullEvent, error) bool) {
		options, err := pullOptions(o)
		if err != nil {
			yield(engine.PullEvent{}, fmt.Errorf("pull image %s: %w", ref, err))
			return
		}
		// The engine stops the pull when the request ends.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		downloads := e.watchIngests(ctx, time.Now())
		defer downloads.close()
		stream, err := e.api().ImagePull(ctx, ref, options)
		if err != nil {
			yield(engine.PullEvent{}, e.fail(ctx, err, "pull image %s", ref))
			return
		}
		defer stream.Close()
		digest, layers := "", false
		for m, err := range stream.JSONMessages(ctx) {
			if err == nil && m.Error != nil {
				err = m.Error
			}
			if err != nil {
				yield(engine.PullEvent{}, e.fail(ctx, err, "pull image %s", ref))
				return
			}
			ev := pullEvent(m)
			if text, ok := strings.CutPrefix(ev.Status, "Digest: "); ok {
				digest = text
			}
			layers = layers || ev.Layer != ""
			if !yield(ev, nil) {
				return
			}
		}
		if !layers {
			return // nothing was fetched
		}
		for _, ev := range downloads.times(ctx, digest, o.Platform) {
			if !yield(ev, nil) {
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
		ev.Current, ev.Total, ev.Units = m.Progress.Current, m.Progress.Total, m.Progress.Units
	}
	return ev
}

func pullOptions(o engine.PullOptions) (client.ImagePullOptions, error) {
	var options client.ImagePullOptions
	platform, err := engine.ParsePlatform(o.Platform)
	if err != nil {
		return options, err
	}
	if platform != nil {
		options.Platforms = []ocispec.Platform{*platform}
	}
	if o.Login == (engine.Login{}) {
		return options, nil
	}
	login, err := json.Marshal(registry.AuthConfig{
		Username: o.Login.Username, Password: o.Login.Password, ServerAddress: o.Login.Server,
		IdentityToken: o.Login.IdentityToken, RegistryToken: o.Login.RegistryToken,
	})
	if err != nil {
		return options, err
	}
	options.RegistryAuth = base64.URLEncoding.EncodeToString(login)
	return options, nil
}
