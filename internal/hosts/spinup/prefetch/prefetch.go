// Package prefetch keeps named images present on this host, so that no spin-up
// waits for a pull of them: the images of the configuration, and those that the
// operator added through the agent. It checks at its start, when the engine
// reports that an image was deleted, and periodically. It pulls missing images
// one at a time.
package prefetch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// MaxImages bounds the list.
const MaxImages = 256

// Config is the configuration.
type Config struct {
	Prefetch []string      `yaml:"prefetch"` // images
	Check    time.Duration `yaml:"check"`    // approximate check interval
}

// DefaultConfig keeps no image.
func DefaultConfig() Config { return Config{Check: 10 * time.Minute} }

// Validate validates the configuration; the error begins with the key.
func (c Config) Validate() error {
	if c.Check < time.Second {
		return fmt.Errorf("check: %v is less than 1s", c.Check)
	}
	if len(c.Prefetch) > MaxImages {
		return fmt.Errorf("prefetch: %d images, at most %d are allowed", len(c.Prefetch), MaxImages)
	}
	for _, image := range c.Prefetch {
		if err := check(image); err != nil {
			return fmt.Errorf("prefetch: %w", err)
		}
	}
	return nil
}

// NameError is an invalid image name.
type NameError struct{ Image string }

func (e *NameError) Error() string { return fmt.Sprintf("%q is not an image name", e.Image) }

// Hint describes a valid name.
func (e *NameError) Hint() string {
	return "an image is named [registry/]name[:tag] or [registry/]name@sha256:…, in lower case"
}

func check(image string) error {
	if _, err := name.ParseReference(image); err != nil || len(image) > 512 {
		return &NameError{image[:min(len(image), 512)]}
	}
	return nil
}

// Entry is an image that a node keeps present on its host.
type Entry struct {
	Image string `json:"image"`
	Fixed bool   `json:"fixed"` // named in the configuration, not by a command
	State State  `json:"state"`
	// Error is why the last pull failed. Again is the time of the next try.
	Error string    `json:"error,omitempty"`
	Again time.Time `json:"again,omitzero"`
}

// State is whether an image is on the host.
type State string

// The states.
const (
	Unknown State = "unknown" // not checked yet, or the engine does not answer
	Present State = "present"
	Pulling State = "pulling"
	Missing State = "missing"
)

// Errors that callers check for.
var (
	ErrFixed = errors.New("the image is kept by the configuration")
	ErrFull  = fmt.Errorf("already %d images are kept: %w", MaxImages, holdfast.ErrBusy)
)

// Engine is the part of a container engine that a Keeper uses.
type Engine interface {
	// ImageID returns engine.ErrNoImage if the image is not on this host.
	ImageID(ctx context.Context, ref string) (string, error)
	// Watch yields the engine's events, starting with a Gap, until ctx is done.
	Watch(ctx context.Context, o engine.WatchOptions) iter.Seq[engine.Event]
}

// Deps are the dependencies of a Keeper.
type Deps struct {
	Engine Engine
	// Pull pulls one image.
	Pull func(ctx context.Context, image string) error
	// File is the path of the list of images added by the operator.
	File string
	Log  *slog.Logger
}

// Backoff between pulls of an image that fail.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 15 * time.Minute
)

// pullLimit bounds the pull of one image, because the others wait for it. It is
// enough for 70 GB at the 20 MiB/s below which a download counts as slow.
const pullLimit = time.Hour

// Keeper keeps images. Its methods may be called from any goroutine.
type Keeper struct {
	every time.Duration
	deps  Deps
	wake  tasks.Signal // check now

	mu   sync.Mutex
	list []*image // those of the configuration first
}

// image is a kept image. Guarded by Keeper.mu.
type image struct {
	Entry
	wait time.Duration // backoff after the next failure
}

// New returns a keeper with the saved list. A list that cannot be read is logged,
// and replaced with the next change.
func New(c Config, d Deps) *Keeper {
	k := &Keeper{every: c.Check, deps: d, wake: tasks.NewSignal()}
	for _, name := range c.Prefetch {
		k.add(name, true)
	}
	named, err := ReadList(d.File)
	if err != nil {
		d.Log.Error("the list of images to keep cannot be read and is replaced", "error", err)
	}
	for _, name := range named {
		k.add(name, false)
	}
	return k
}

// add puts an image on the list unless it is there. The caller holds mu, or is
// New.
func (k *Keeper) add(name string, fixed bool) {
	if k.find(name) == nil {
		k.list = append(k.list, &image{Entry: Entry{Image: name, Fixed: fixed, State: Unknown}})
	}
}

func (k *Keeper) find(name string) *image {
	for _, i := range k.list {
		if i.Image == name {
			return i
		}
	}
	return nil
}

// List returns all images, those of the configuration first.
func (k *Keeper) List() []Entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]Entry, 0, len(k.list))
	for _, i := range k.list {
		out = append(out, i.Entry)
	}
	return out
}

// Add keeps more images from now on, also after a restart. It returns *NameError
// or ErrFull.
func (k *Keeper) Add(images ...string) error {
	for _, name := range images {
		if err := check(name); err != nil {
			return err
		}
	}
	return k.change(func() error {
		for _, name := range images {
			if k.find(name) == nil && len(k.list) >= MaxImages {
				return ErrFull
			}
			k.add(name, false)
			i := k.find(name)
			i.Again, i.wait = time.Time{}, 0
		}
		return nil
	})
}

// Remove stops keeping images. They stay on the host until they are deleted. It
// returns holdfast.ErrNotFound or ErrFixed.
func (k *Keeper) Remove(images ...string) error {
	return k.change(func() error {
		for _, name := range images {
			i := k.find(name)
			switch {
			case i == nil:
				return fmt.Errorf("image %s is not kept: %w", name, holdfast.ErrNotFound)
			case i.Fixed:
				return holdfast.WithHint(fmt.Errorf("%s: %w", name, ErrFixed), "remove it from images.prefetch in the configuration, and restart the agent")
			}
			k.list = slices.DeleteFunc(k.list, func(other *image) bool { return other == i })
		}
		return nil
	})
}

// change changes the list completely or not at all, and saves it.
func (k *Keeper) change(do func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := slices.Clone(k.list)
	err := do()
	if err == nil {
		var named []string
		for _, i := range k.list {
			if !i.Fixed {
				named = append(named, i.Image)
			}
		}
		err = writeList(k.deps.File, named)
	}
	if err != nil {
		k.list = before
		return err
	}
	k.wake.Set()
	return nil
}

// Run keeps the images until ctx is done.
func (k *Keeper) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching.Go(func() {
		for range k.deps.Engine.Watch(ctx, engine.WatchOptions{Actions: []string{"delete", "untag"}}) {
			k.wake.Set()
		}
	})
	for ctx.Err() == nil {
		select {
		case <-time.After(k.round(ctx)):
		case <-k.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// round checks every due image, and returns when to check again. The times are
// jittered, so that hosts that started together do not query their registry at
// the same time.
func (k *Keeper) round(ctx context.Context) time.Duration {
	for _, one := range k.List() {
		if ctx.Err() == nil && !time.Now().Before(one.Again) {
			k.look(ctx, one.Image)
		}
	}
	next := jitter(k.every)
	for _, one := range k.List() {
		if !one.Again.IsZero() {
			next = min(next, max(time.Until(one.Again), 0))
		}
	}
	return next
}

// jitter returns d, changed by up to a tenth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

// look checks that an image is on this host, and pulls it otherwise.
func (k *Keeper) look(ctx context.Context, name string) {
	limited, cancel := context.WithTimeout(ctx, pullLimit)
	defer cancel()
	failed := Unknown // the state after an error
	_, err := k.deps.Engine.ImageID(limited, name)
	if errors.Is(err, engine.ErrNoImage) {
		failed = Missing
		k.set(name, func(i *image) { i.State = Pulling })
		k.deps.Log.Info("pulling an image to keep", "image", name)
		err = k.deps.Pull(limited, name)
	}
	if ctx.Err() != nil {
		return // the error is not about the image
	}
	k.set(name, func(i *image) { i.seen(err, failed) })
	if err != nil {
		k.deps.Log.Warn("an image to keep is missing", "image", name, "error", err)
	}
}

// seen records the result of a check. failed is the state after an error.
func (i *image) seen(err error, failed State) {
	if err == nil {
		i.State, i.Error, i.Again, i.wait = Present, "", time.Time{}, 0
		return
	}
	i.State = failed
	i.wait = min(max(2*i.wait, firstRetry), lastRetry)
	i.Error, i.Again = err.Error(), time.Now().Add(jitter(i.wait))
}

// set changes an image unless it was removed meanwhile.
func (k *Keeper) set(name string, do func(*image)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := k.find(name); i != nil {
		do(i)
	}
}
