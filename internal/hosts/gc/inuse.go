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

// goneAlready is the reason when the object no longer exists.
const goneAlready = "it was already removed"

// look checks, right before a step of a removal, whether the step is still
// allowed and needed. reason says why it is not allowed.
func (r *run) look(ctx context.Context, d Deletion, s step) (needed bool, reason string, err error) {
	switch d.Kind {
	case Stopped, Created:
		reason, err = r.containerInUse(ctx, d)
		return true, reason, err
	case BuildCache:
		return true, "", nil // the builder checks this itself
	}
	if r.c.tracker.usedSince(d.use(), time.Now().Add(-d.keepFor), r.planned) {
		return false, "it was used, or may have been used, since the plan", nil
	}
	holders, err := r.c.d.Engine.Holders(ctx)
	if err != nil {
		return false, "", err
	}
	for _, h := range holders {
		if holds(h, d) {
			return false, fmt.Sprintf("container %s uses it now", h.Name), nil
		}
	}
	if d.Kind == Images {
		// This check is last, right before the removal of the name. Listing
		// containers takes time. If a container has taken the image meanwhile,
		// the engine refuses the removal. But the engine does not refuse to
		// remove a name that a build has moved to another image with no other
		// name.
		return r.lookAtImage(ctx, d, s)
	}
	return true, "", nil
}

// use returns the key under which the object's uses are recorded.
func (d Deletion) use() string {
	switch d.Kind {
	case Networks:
		return networkKey(d.ID)
	case Volumes:
		return volumeKey(d.ID)
	}
	return d.ID
}

// holds reports whether container h uses the object of d.
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

// containerInUse reports why container d may not be removed: its state changed
// since the plan.
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
		r.c.forgetExit(d.ID)
		return "it ran again since the plan", nil
	}
	return "", nil
}

// lookAtImage compares an image's names with those in the plan. A new name means
// that the image is wanted. A name that has moved to another image is not
// touched.
func (r *run) lookAtImage(ctx context.Context, d Deletion, s step) (needed bool, reason string, err error) {
	img, _, err := r.c.d.Engine.InspectImage(ctx, d.ID)
	switch {
	case errors.Is(err, engine.ErrNoImage) && len(d.Refs) > 0:
		return false, "", nil // removed with one of its names
	case errors.Is(err, engine.ErrNoImage):
		return false, goneAlready, nil
	case err != nil:
		return false, "", err
	}
	for _, ref := range img.Refs {
		if !slices.Contains(d.Refs, ref) {
			return false, fmt.Sprintf("it has the new name %s", ref), nil
		}
	}
	if s.ref == "" && len(img.Refs) > 0 {
		return false, fmt.Sprintf("it still has the name %s", img.Refs[0]), nil
	}
	return s.ref == "" || slices.Contains(img.Refs, s.ref), "", nil
}
