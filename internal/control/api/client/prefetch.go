package client

import (
	"context"

	"holdfast/internal/control/api"
	"holdfast/internal/hosts/spinup/prefetch"
)

// PrefetchImages lists the images that the agent keeps present on its host.
func (c *Client) PrefetchImages(ctx context.Context) ([]prefetch.Entry, error) {
	a, err := get[api.PrefetchImages](ctx, c, "/v1/prefetch")
	return a.Images, err
}

// AddPrefetchImages makes the agent keep more images, and returns all of them. It does
// not wait for their pulls.
func (c *Client) AddPrefetchImages(ctx context.Context, images []string) ([]prefetch.Entry, error) {
	a, err := post[api.PrefetchImages](ctx, c, "/v1/prefetch", api.PrefetchRequest{Images: images})
	return a.Images, err
}

// RemovePrefetchImages makes the agent stop keeping images, and returns the others.
// holdfast.ErrNotFound.
func (c *Client) RemovePrefetchImages(ctx context.Context, images []string) ([]prefetch.Entry, error) {
	a, err := post[api.PrefetchImages](ctx, c, "/v1/prefetch/remove", api.PrefetchRequest{Images: images})
	return a.Images, err
}
