package client

import (
	"context"

	"holdfast"
	"holdfast/internal/control/api"
)

// WarmImages lists the images that the agent keeps present on its host.
func (c *Client) WarmImages(ctx context.Context) ([]holdfast.WarmImage, error) {
	var a api.WarmImages
	err := c.get(ctx, "/v1/warm-images", &a)
	return a.Images, err
}

// AddWarmImages has the agent keep more images, and returns all of them. It does
// not wait until they are there.
func (c *Client) AddWarmImages(ctx context.Context, images []string) ([]holdfast.WarmImage, error) {
	var a api.WarmImages
	err := c.post(ctx, "/v1/warm-images", api.WarmRequest{Images: images}, &a)
	return a.Images, err
}

// RemoveWarmImages has the agent keep images no more, and returns the others.
// holdfast.ErrNotFound.
func (c *Client) RemoveWarmImages(ctx context.Context, images []string) ([]holdfast.WarmImage, error) {
	var a api.WarmImages
	err := c.post(ctx, "/v1/warm-images/remove", api.WarmRequest{Images: images}, &a)
	return a.Images, err
}
