package containerd

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/remotes"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"holdfast/internal/platform/engine"
)

// countEvery is the interval of progress events of a layer.
const countEvery = 100 * time.Millisecond

// progress reports a pull in Docker's words, at the time of each step: this process
// fetches the layers, and requests the extraction of each.
type progress struct {
	events chan engine.PullEvent
	ctx    context.Context // done when the reader has stopped

	mu     sync.Mutex
	layers map[string]*layerProgress // by digest
	order  []*layerProgress
}

type layerProgress struct {
	id      string // short
	size    int64
	fetched bool
	applied bool
}

func newProgress(ctx context.Context) *progress {
	return &progress{ctx: ctx, events: make(chan engine.PullEvent), layers: map[string]*layerProgress{}}
}

func (p *progress) tell(ev engine.PullEvent) {
	ev.Time = time.Now()
	select {
	case p.events <- ev:
	case <-p.ctx.Done():
	}
}

// layer returns the layer of desc, or nil if desc is not a layer.
func (p *progress) layer(desc ocispec.Descriptor) *layerProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.layers[desc.Digest.String()]
}

// announce reports the layers among a manifest's children.
func (p *progress) announce(children []ocispec.Descriptor) {
	for _, desc := range children {
		if !images.IsLayerType(desc.MediaType) {
			continue
		}
		key := desc.Digest.String()
		p.mu.Lock()
		known := p.layers[key] != nil
		l := &layerProgress{id: desc.Digest.Encoded()[:12], size: desc.Size}
		if !known {
			p.layers[key] = l
			p.order = append(p.order, l)
		}
		p.mu.Unlock()
		if !known {
			p.tell(engine.PullEvent{Layer: l.id, Status: "Pulling fs layer"})
		}
	}
}

// handler announces the layers of manifests.
func (p *progress) handler(h images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		children, err := h.Handle(ctx, desc)
		if err == nil && images.IsManifestType(desc.MediaType) {
			p.announce(children)
		}
		return children, err
	})
}

// finish reports the layers that needed no work.
func (p *progress) finish() {
	p.mu.Lock()
	order := p.order
	p.mu.Unlock()
	for _, l := range order {
		switch {
		case l.applied:
		case l.fetched: // another pull has extracted it
			p.tell(engine.PullEvent{Layer: l.id, Status: "Pull complete"})
		default:
			p.tell(engine.PullEvent{Layer: l.id, Status: "Already exists"})
		}
	}
}

// watchedResolver marks a registry's errors, and counts the bytes from it.
type watchedResolver struct {
	remotes.Resolver
	p *progress
}

func (r watchedResolver) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	name, desc, err := r.Resolver.Resolve(ctx, ref)
	if err != nil {
		err = registryError{err}
	}
	return name, desc, err
}

func (r watchedResolver) Fetcher(ctx context.Context, ref string) (remotes.Fetcher, error) {
	f, err := r.Resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, registryError{err}
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		body, err := f.Fetch(ctx, desc)
		if err != nil {
			return nil, registryError{err}
		}
		c := &counted{ReadCloser: body, p: r.p, l: r.p.layer(desc)}
		c.told = time.Now()
		if c.l != nil {
			c.l.fetched = true
			r.p.tell(engine.PullEvent{Layer: c.l.id, Status: "Downloading", Total: c.l.size})
		}
		return c, nil
	}), nil
}

// counted is the body of a blob.
type counted struct {
	io.ReadCloser
	p    *progress
	l    *layerProgress // nil: not a layer
	n    int64
	told time.Time
	done bool
}

// Seek is for a download that resumes an earlier one.
func (c *counted) Seek(offset int64, whence int) (int64, error) {
	s, ok := c.ReadCloser.(io.Seeker)
	if !ok {
		return 0, io.ErrNoProgress
	}
	at, err := s.Seek(offset, whence)
	if err == nil {
		c.n = at
	}
	return at, err
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n += int64(n)
	if c.l != nil && !c.done {
		switch {
		case c.n >= c.l.size:
			c.done = true
			c.p.tell(engine.PullEvent{Layer: c.l.id, Status: "Downloading", Current: c.n, Total: c.l.size})
			c.p.tell(engine.PullEvent{Layer: c.l.id, Status: "Download complete"})
		case time.Since(c.told) >= countEvery:
			c.told = time.Now()
			c.p.tell(engine.PullEvent{Layer: c.l.id, Status: "Downloading", Current: c.n, Total: c.l.size})
		}
	}
	if err != nil && err != io.EOF {
		err = registryError{err}
	}
	return n, err
}

// progressKey is the context key of the *progress of a pull.
type progressKey struct{}

// watchedDiff reports the extraction of layers.
type watchedDiff struct{ client.DiffService }

// Apply extracts a layer.
func (d watchedDiff) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, o ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	p, _ := ctx.Value(progressKey{}).(*progress)
	var l *layerProgress
	if p != nil {
		l = p.layer(desc)
	}
	if l == nil {
		return d.DiffService.Apply(ctx, desc, mounts, o...)
	}
	if !l.fetched { // it was present, but not extracted
		p.tell(engine.PullEvent{Layer: l.id, Status: "Already exists"})
	}
	p.tell(engine.PullEvent{Layer: l.id, Status: "Extracting", Total: l.size})
	out, err := d.DiffService.Apply(ctx, desc, mounts, o...)
	if err == nil {
		l.applied = true
		p.tell(engine.PullEvent{Layer: l.id, Status: "Pull complete"})
	}
	return out, err
}
