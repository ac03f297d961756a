package apitest

import (
	"fmt"
	"slices"

	"holdfast"
	"holdfast/internal/hosts/spinup/prefetch"
)

// prefetcher implements api.Prefetcher. An image is present as soon as it is
// added.
type prefetcher struct{ b *Backend }

func (p prefetcher) List() []prefetch.Entry {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	return slices.Clone(p.b.prefetch)
}

func (p prefetcher) Add(images ...string) error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	for _, image := range images {
		if p.b.fault == nil && p.find(image) < 0 {
			p.b.prefetch = append(p.b.prefetch, prefetch.Entry{Image: image, State: prefetch.Present})
		}
	}
	return p.b.fault
}

func (p prefetcher) Remove(images ...string) error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	for _, image := range images {
		i := p.find(image)
		if p.b.fault != nil {
			return p.b.fault
		}
		if i < 0 {
			return fmt.Errorf("image %s is not kept: %w", image, holdfast.ErrNotFound)
		}
		p.b.prefetch = slices.Delete(p.b.prefetch, i, i+1)
	}
	return nil
}

func (p prefetcher) find(image string) int {
	return slices.IndexFunc(p.b.prefetch, func(e prefetch.Entry) bool { return e.Image == image })
}
