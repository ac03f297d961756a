package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// goneAlready is the reason where there is nothing left to remove.
const goneAlready = "somebody else removed it"

// look looks again, right before a step of a removal, whether it is still right,
// and needed. The reason says what is against it.
func (r *run) look(ctx context.Context, d Deletion, s step) (needed bool, reason string, err error) {
	switch d.Kind {
	case Stopped, Created:
		reason, err = r.containerInUse(ctx, d)
		return true, reason, err
	case BuildCache:
		return true, "", nil // the builder knows itself
	}
	if r.c.tracker.usedSince(d.use(), time.Now().Add(-d.keepFor), r.planned) {
		return false, "it was used meanwhile, or may have been", nil
	}
	holders, err := r.c.d.Engine.Holders(ctx)
	if err != nil {
		return false, "", err
	}
	for _, h := range holders {
		if holds(h, d) {
			return false, fmt.Sprintf("container %s has it by now", h.Name), nil
		}
	}
	if d.Kind == Images {
		// Last, and nothing comes between this and the removal of the name: the
		// list of containers takes its time, and the engine refuses to remove
		// what got one meanwhile, but not a name that has moved to an image
		// that was built meanwhile and has no other.
		return r.lookAtImage(ctx, d, s)
	}
	return true, "", nil
}

// use is the key of the uses of what goes.
func (d Deletion) use() string {
	switch d.Kind {
	case Networks:
		return networkKey(d.ID)
	case Volumes:
		return volumeKey(d.ID)
	}
	return d.ID
}

// holds reports whether a container has the object.
func holds(h engine.Holder, d Deletion) bool {
	switch d.Kind {
	case Images:
		return h.ImageID == d.ID
	case Networks:
		return slices.Contains(h.Networks, d.ID) || slices.Contains(h.Networks, d.Name)
	case Volumes:
		return slices.Contains(h.Volumes, d.ID)
	}
	return false
}

// containerInUse holds a container to what it was.
func (r *run) containerInUse(ctx context.Context, d Deletion) (string, error) {
	c, err := r.c.d.Engine.Inspect(ctx, d.ID)
	if errors.Is(err, holdfast.ErrNotFound) {
		return goneAlready, nil
	}
	if err != nil {
		return "", err
	}
	states := map[Kind][]string{Stopped: {"exited", "dead"}, Created: {"created"}}[d.Kind]
	if !slices.Contains(states, c.State) {
		return "it is " + c.State + " by now", nil
	}
	if time.Since(latest(c.Created, c.FinishedAt)) < d.keepFor {
		return "it ran again meanwhile", nil
	}
	return "", nil
}

// lookAtImage holds an image to the names that it had. A new one is somebody's
// who wants it; one that has moved to another image is not touched.
func (r *run) lookAtImage(ctx context.Context, d Deletion, s step) (needed bool, reason string, err error) {
	img, _, err := r.c.d.Engine.InspectImage(ctx, d.ID)
	switch {
	case errors.Is(err, engine.ErrNoImage) && len(d.Refs) > 0:
		return false, "", nil // it went with one of its names
	case errors.Is(err, engine.ErrNoImage):
		return false, goneAlready, nil
	case err != nil:
		return false, "", err
	}
	for _, ref := range img.Refs {
		if !slices.Contains(d.Refs, ref) {
			return false, fmt.Sprintf("it has got the name %s", ref), nil
		}
	}
	if s.ref == "" && len(img.Refs) > 0 {
		return false, fmt.Sprintf("it still has the name %s", img.Refs[0]), nil
	}
	return s.ref == "" || slices.Contains(img.Refs, s.ref), "", nil
}
