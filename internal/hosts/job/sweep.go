package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/owner"
)

// Cleaner is the part of an engine that cleaning up uses.
type Cleaner interface {
	List(ctx context.Context, labels map[string]string) ([]engine.Container, error)
	Remove(ctx context.Context, id string) error
	Networks(ctx context.Context, labels map[string]string) ([]engine.Network, error)
	RemoveNetwork(ctx context.Context, id string) error
}

// removals limits concurrent removals of containers. The engine does most of a
// removal under one lock, so more would only wait.
const removals = 8

// unclaimed is the minimum age of leftovers of an owner in an unknown state. A
// live owner has a running container within that time.
const unclaimed = time.Hour

// remains is everything found of one job.
type remains struct {
	owner      string
	containers []engine.Container
	networks   []engine.Network
}

// find returns the objects that carry the labels, by job. It skips a container
// without a job's name: images inherit labels (docker commit of a job's
// container) and pass them on to containers that no job made. Names are not
// inherited.
func find(ctx context.Context, e Cleaner, labels map[string]string) (map[string]*remains, error) {
	found := map[string]*remains{}
	of := func(labels map[string]string) *remains {
		id := labels[LabelJob]
		if found[id] == nil {
			found[id] = &remains{owner: labels[LabelOwner]}
		}
		return found[id]
	}
	// Networks first: containers that attach meanwhile are then listed too.
	networks, err := e.Networks(ctx, labels)
	if err != nil {
		return nil, err
	}
	containers, err := e.List(ctx, labels)
	if err != nil {
		return nil, err
	}
	for _, n := range networks {
		of(n.Labels).networks = append(of(n.Labels).networks, n)
	}
	for _, c := range containers {
		if !strings.HasPrefix(c.Name, nameOfAll(c.Labels[LabelJob])) {
			continue
		}
		of(c.Labels).containers = append(of(c.Labels).containers, c)
	}
	return found, nil
}

// remove removes containers with their anonymous volumes, then the networks. It
// continues after errors.
func (r *remains) remove(ctx context.Context, e Cleaner) error {
	errs := make([]error, len(r.containers))
	var g errgroup.Group
	g.SetLimit(removals)
	for i, c := range r.containers {
		g.Go(func() error {
			errs[i] = e.Remove(ctx, c.ID)
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	for _, n := range r.networks {
		errs = append(errs, e.RemoveNetwork(ctx, n.ID))
	}
	return errors.Join(errs...)
}

// removeJob removes everything that one job made, and returns the number of
// containers and networks removed.
func removeJob(ctx context.Context, e Cleaner, id string) (int, error) {
	found, err := find(ctx, e, map[string]string{LabelJob: id})
	if err != nil || found[id] == nil {
		return 0, err
	}
	r := found[id]
	return len(r.containers) + len(r.networks), r.remove(ctx, e)
}

// Sweep removes what jobs with dead owners left, and returns the number of these
// jobs. An owner may not be visible from here: it belongs to an earlier boot, to
// another host or to a container that uses this engine, or /proc hides it. Its
// job counts as dead if none of its containers runs and all of its objects are an
// hour old.
func Sweep(ctx context.Context, e Cleaner, self Owner, log *slog.Logger) (int, error) {
	found, err := find(ctx, e, map[string]string{LabelJob: ""})
	if err != nil {
		return 0, fmt.Errorf("list what killed jobs left: %w", err)
	}
	swept := 0
	for id, r := range found {
		if !r.abandoned(self, time.Now()) {
			continue
		}
		if e := r.remove(ctx, e); e != nil {
			err = errors.Join(err, fmt.Errorf("remove what job %s left: %w", id, e))
			continue
		}
		swept++
		log.Info("removed what a killed job left", "job", id, "containers", len(r.containers), "networks", len(r.networks))
	}
	return swept, err
}

func (r *remains) abandoned(self Owner, now time.Time) bool {
	by, err := owner.Parse(r.owner)
	if err != nil {
		return false // not from a job
	}
	switch self.FateOf(by) {
	case owner.Dead:
		return true
	case owner.Alive:
		return false
	}
	for _, c := range r.containers {
		if c.Running() || now.Sub(c.Created) < unclaimed {
			return false
		}
	}
	for _, n := range r.networks {
		if now.Sub(n.Created) < unclaimed {
			return false
		}
	}
	return true
}
