package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/moby/moby/client"
)

// Load imports the images of an archive as `docker save` writes it.
func (e *Engine) Load(ctx context.Context, archive io.Reader) error {
	res, err := e.api().ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
	if err != nil {
		return e.fail(ctx, err, "load images")
	}
	defer res.Close()
	// Errors after the first byte arrive in the stream.
	for dec := json.NewDecoder(res); ; {
		var line struct {
			Error string `json:"error"`
		}
		err := dec.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && line.Error != "" {
			err = errors.New(line.Error)
		}
		if err != nil {
			return e.fail(ctx, err, "load images")
		}
	}
}
