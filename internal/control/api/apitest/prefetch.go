package apitest

import (
	"context"
	"fmt"
	"slices"

	"holdfast"
	"holdfast/internal/hosts/spinup/prefetch"
)

// PrefetchImages implements api.Backend.
func (b *Backend) PrefetchImages(context.Context) ([]prefetch.Entry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.prefetch), b.fault
}

// AddPrefetchImages implements api.Backend: what is added is there.
func (b *Backend) AddPrefetchImages(_ context.Context, images []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, image := range images {
		if b.fault == nil && b.prefetchImage(image) < 0 {
			b.prefetch = append(b.prefetch, prefetch.Entry{Image: image, State: prefetch.Present})
		}
	}
	return b.fault
}

// RemovePrefetchImages implements api.Backend.
func (b *Backend) RemovePrefetchImages(_ context.Context, images []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, image := range images {
		i := b.prefetchImage(image)
		if b.fault != nil {
			return b.fault
		}
		if i < 0 {
			return fmt.Errorf("image %s is not kept: %w", image, holdfast.ErrNotFound)
		}
		b.prefetch = slices.Delete(b.prefetch, i, i+1)
	}
	return nil
}

func (b *Backend) prefetchImage(image string) int {
	return slices.IndexFunc(b.prefetch, func(w prefetch.Entry) bool { return w.Image == image })
}
