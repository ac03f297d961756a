package apitest

import (
	"context"
	"fmt"
	"slices"

	"holdfast"
)

// WarmImages implements api.Backend.
func (b *Backend) WarmImages(context.Context) ([]holdfast.WarmImage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.warm), b.fault
}

// AddWarmImages implements api.Backend: what is added is there.
func (b *Backend) AddWarmImages(_ context.Context, images []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, image := range images {
		if b.fault == nil && b.warmImage(image) < 0 {
			b.warm = append(b.warm, holdfast.WarmImage{Image: image, State: holdfast.WarmPresent})
		}
	}
	return b.fault
}

// RemoveWarmImages implements api.Backend.
func (b *Backend) RemoveWarmImages(_ context.Context, images []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, image := range images {
		i := b.warmImage(image)
		if b.fault != nil {
			return b.fault
		}
		if i < 0 {
			return fmt.Errorf("image %s is not kept: %w", image, holdfast.ErrNotFound)
		}
		b.warm = slices.Delete(b.warm, i, i+1)
	}
	return nil
}

func (b *Backend) warmImage(image string) int {
	return slices.IndexFunc(b.warm, func(w holdfast.WarmImage) bool { return w.Image == image })
}
