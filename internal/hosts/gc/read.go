package gc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// exitAge is how long a reader believes that a stopped container has not run meanwhile. A
// container that has is noticed before its removal (containerInUse).
const exitAge = 15 * time.Minute

// reader builds a State from the engine's objects. It caches the layers of
// images, which never change, and for exitAge the exits of containers. Only one goroutine
// may use it at a time.
type reader struct {
	engine Engine
	chains map[string][]string // image id → chain ids
	sizes  map[string]int64    // chain id → bytes on disk, as recorded by the engine
	exits  map[string]exit     // by id, of stopped containers
}

// exit is the end of a container's last run.
type exit struct {
	at   time.Time
	read time.Time // when the engine was asked
}

func newReader(e Engine) *reader {
	return &reader{engine: e, chains: map[string][]string{}, sizes: map[string]int64{}, exits: map[string]exit{}}
}

// read lists the objects of these kinds, and in any case containers and images.
// layers may be nil if the layers are not on this host.
func (r *reader) read(ctx context.Context, kinds []Kind, u Uses, layers files, disk Disk, now time.Time) (State, error) {
	s := State{Now: now, Disk: disk, Blind: u.Blind}
	holders, err := r.engine.Holders(ctx)
	if err != nil {
		return s, err
	}
	if s.Containers, err = r.containers(ctx, holders, now); err != nil {
		return s, err
	}
	if err := r.images(ctx, &s, u); err != nil {
		return s, err
	}
	r.layerSizes(&s, layers)
	if slices.Contains(kinds, Networks) {
		if err := r.networks(ctx, &s, u); err != nil {
			return s, err
		}
	}
	if slices.Contains(kinds, Volumes) {
		if err := r.volumes(ctx, &s, u); err != nil {
			return s, err
		}
	}
	s.Builder = slices.Contains(kinds, BuildCache)
	return s, nil
}

// kinds returns the kinds that the rules name.
func (c Config) kinds() (kinds []Kind) {
	for _, r := range c.rules() {
		kinds = append(kinds, r.Kinds...)
	}
	return kinds
}

// containers returns all containers, each that does not run with the time at which it
// exited.
func (r *reader) containers(ctx context.Context, holders []engine.Holder, now time.Time) ([]Container, error) {
	list := make([]Container, 0, len(holders))
	stopped := make(map[string]bool, len(holders))
	for _, h := range holders {
		c := Container{Holder: h, LastUse: now}
		switch h.State {
		case "created":
			c.LastUse = h.Created
		case "exited", "dead":
			at, err := r.exitOf(ctx, h.ID, now)
			if errors.Is(err, holdfast.ErrNotFound) {
				continue // removed meanwhile
			}
			if err != nil {
				return nil, err
			}
			stopped[h.ID] = true
			c.LastUse = latest(h.Created, at)
		}
		list = append(list, c)
	}
	maps.DeleteFunc(r.exits, func(id string, _ exit) bool { return !stopped[id] })
	return list, nil
}

// exitOf returns the time at which a stopped container exited. A list of the engine does
// not have it, and one call for each container in each cycle is much work for an engine with
// thousands of them.
func (r *reader) exitOf(ctx context.Context, id string, now time.Time) (time.Time, error) {
	if known, ok := r.exits[id]; ok && now.Sub(known.read).Abs() < exitAge {
		return known.at, nil
	}
	full, err := r.engine.Inspect(ctx, id)
	if err != nil {
		return time.Time{}, err
	}
	r.exits[id] = exit{full.FinishedAt, now}
	return full.FinishedAt, nil
}

func (r *reader) images(ctx context.Context, s *State, u Uses) error {
	images, err := r.engine.Images(ctx)
	if err != nil {
		return err
	}
	used := map[string]time.Time{}
	for _, c := range s.Containers {
		used[c.ImageID] = latest(used[c.ImageID], c.LastUse)
	}
	there := make(map[string]bool, len(images))
	for _, img := range images {
		there[img.ID] = true
		chain, ok := r.chains[img.ID]
		if !ok {
			_, diffs, err := r.engine.InspectImage(ctx, img.ID)
			if errors.Is(err, engine.ErrNoImage) {
				continue // removed meanwhile
			}
			if err != nil {
				return fmt.Errorf("read the layers of an image: %w", err)
			}
			chain = ChainIDs(diffs)
			r.chains[img.ID] = chain
		}
		// If the last use is unknown, it is not the build date: the image may have
		// been pulled just now.
		last := u.lastUse(img.ID, s.Now)
		s.Images = append(s.Images, Image{Image: img, Layers: chain, LastUse: latest(last, used[img.ID])})
	}
	maps.DeleteFunc(r.chains, func(id string, _ []string) bool { return !there[id] })
	return nil
}

func (r *reader) networks(ctx context.Context, s *State, u Uses) error {
	networks, err := r.engine.Networks(ctx, nil)
	if err != nil {
		return err
	}
	for _, n := range networks {
		// Not its creation time: it may be in daily use.
		s.Networks = append(s.Networks, Network{Network: n, LastUse: u.lastUse(networkKey(n.ID), s.Now)})
	}
	return nil
}

func (r *reader) volumes(ctx context.Context, s *State, u Uses) error {
	volumes, err := r.engine.Volumes(ctx)
	if err != nil {
		return err
	}
	for _, v := range volumes {
		s.Volumes = append(s.Volumes, Volume{Volume: v, LastUse: u.lastUse(volumeKey(v.Name), s.Now)})
	}
	return nil
}

// layerSizes fills in the size of each layer: from the engine's own files if they
// are readable, otherwise estimated.
func (r *reader) layerSizes(s *State, layers files) {
	s.LayerSize = map[string]int64{}
	known := map[string]int64{}
	for _, img := range s.Images {
		for _, l := range img.Layers {
			size, ok := r.sizes[l]
			if !ok && layers != nil {
				size, ok = layers.size(l)
			}
			if ok {
				known[l], s.LayerSize[l] = size, size
			}
		}
	}
	r.sizes = known // forgets removed layers
	guessSizes(s)
}

// guessSizes estimates the sizes of unknown layers from the sizes of the images.
// It starts with the image with the fewest layers. The topmost layer gets what
// the layers below leave.
func guessSizes(s *State) {
	byDepth := slices.Clone(s.Images)
	sort.SliceStable(byDepth, func(i, j int) bool { return len(byDepth[i].Layers) < len(byDepth[j].Layers) })
	for _, img := range byDepth {
		rest, top := img.Size, ""
		for _, l := range img.Layers {
			if size, ok := s.LayerSize[l]; ok {
				rest -= size
				continue
			}
			s.LayerSize[l] = 0
			top = l
		}
		if top != "" {
			s.LayerSize[top] = max(rest, 0)
		}
	}
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
