package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// ContainerError is the error of a container of a job that did not start.
type ContainerError struct {
	Run   int
	Name  string
	Phase spinup.Phase // "" while waiting for its image
	Err   error
	// Log is the last lines of the container's output, at most a few kilobytes;
	// empty if it never ran.
	Log string
}

func (e *ContainerError) Error() string { return e.Name + ": " + e.Err.Error() }
func (e *ContainerError) Unwrap() error { return e.Err }

// network is the network of one run.
type network struct {
	made chan struct{} // closed when id and err are valid
	id   string
	err  error
}

// bringUp makes the run's network and containers. It returns the primary
// container's id when all containers run and are ready.
func (x *underway) bringUp(ctx context.Context, index int, images map[string]*fetched) (primary string, err error) {
	g, ctx := errgroup.WithContext(ctx)
	net, starts := &network{made: make(chan struct{})}, &span{}
	g.Go(func() error {
		defer close(net.made)
		net.id, net.err = x.makeNetwork(ctx, index)
		return net.err
	})
	for i, img := range x.job.Images {
		g.Go(func() error {
			u := &containerStart{
				underway: x, index: index, image: img, primary: i == 0, starts: starts,
				timer: spinup.NewTimer(spinup.ForRun, img.Image, x.Cohort),
			}
			u.timer.Job(cmp.Or(x.Job, x.id))
			err := u.run(ctx, images[img.Image], x.isFirst(index, i), net)
			if i == 0 {
				primary = u.id
			}
			record := u.timer.End(err)
			x.keep(Spinup{Run: index, Alias: img.Name, Record: record, image: i})
			if err == nil {
				return nil
			}
			// The recorded cause depends on the failed phase: "not found" means the
			// image only while it is pulled.
			return &ContainerError{Run: index, Name: img.Name, Phase: u.phase, Err: record.Cause.Explain(err), Log: u.log}
		})
	}
	err = g.Wait() // before primary is read
	if err == nil {
		x.tell(index, x.job.Images[0].Name, fmt.Sprintf("time to start containers: %.3fs", starts.length().Seconds()))
	}
	return primary, err
}

// span is the time from the first create of a run's containers to the end of the last start.
type span struct {
	mu         sync.Mutex
	begin, end time.Time
}

func (s *span) add(begin, end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begin.IsZero() || begin.Before(s.begin) {
		s.begin = begin
	}
	if end.After(s.end) {
		s.end = end
	}
}

func (s *span) length() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end.Sub(s.begin)
}

// isFirst reports whether this container is the first with its image.
func (x *underway) isFirst(index, image int) bool {
	return index == x.indices[0] && !slices.ContainsFunc(x.job.Images[:image], func(other Image) bool { return other.Image == x.job.Images[image].Image })
}

// makeLimit bounds the creation of a network or a container. Stopping the job
// does not cancel the creation, because then its outcome would be unknown.
const makeLimit = 2 * time.Minute

func (x *underway) makeNetwork(ctx context.Context, index int) (id string, err error) {
	err = x.slot(ctx, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeLimit)
		defer cancel()
		id, err = x.Engine.CreateNetwork(ctx, nameOfAll(x.id)+strconv.Itoa(index), x.labels(index))
		if errors.Is(err, engine.ErrUnsupported) && len(x.job.Images) == 1 {
			id, err = "", nil // nothing to reach by name: the engine's default network, where containers are isolated
		}
		return err
	})
	return id, err
}

// slot calls do while holding one of the limited slots.
func (x *underway) slot(ctx context.Context, do func() error) error {
	if err := x.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer x.slots.Release(1)
	return do()
}

func (x *underway) labels(index int) map[string]string {
	return map[string]string{LabelJob: x.id, LabelOwner: x.Owner.String(), LabelIndex: strconv.Itoa(index)}
}

// containerStart is the start of one container. One goroutine uses it.
type containerStart struct {
	*underway
	index   int
	image   Image
	primary bool
	timer   *spinup.Timer
	starts  *span // of all the run's containers

	phase spinup.Phase // the current phase
	id    string
	log   string // of a container that exited too early
}

// run takes the container from its image to readiness.
func (u *containerStart) run(ctx context.Context, image *fetched, first bool, net *network) error {
	if err := wait(ctx, image.done); err != nil {
		return err
	}
	u.timer.Pulled(image.figures(first))
	if image.err != nil {
		return image.err
	}
	if err := wait(ctx, net.made); err != nil {
		return err
	}
	if net.err != nil {
		return net.err
	}
	if err := u.slot(ctx, func() error { return u.createAndStart(ctx, net.id, image.pull.Digest) }); err != nil {
		return err
	}
	if u.image.Ready == nil {
		return nil
	}
	err := u.timed(spinup.Ready, func() error { return u.awaitReady(ctx) })
	if errors.Is(err, errEnded) {
		u.log = u.lastLines(ctx)
	}
	return err
}

func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// timed runs a phase, measures its duration and reports it.
func (u *containerStart) timed(phase spinup.Phase, do func() error) error {
	u.phase = phase
	begun := time.Now()
	err := do()
	took := time.Since(begun)
	u.timer.Took(phase, took, err)
	if err == nil {
		line := spinup.Record{Times: map[spinup.Phase]holdfast.Millis{phase: holdfast.Millis(took)}}.Lines()
		u.tell(u.index, u.image.Name, strings.Join(line, " "))
	}
	return err
}

func (u *containerStart) createAndStart(ctx context.Context, network, digest string) error {
	spec, begun := u.spec(network), time.Now()
	err := u.timed(spinup.Create, func() (err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeLimit)
		defer cancel()
		u.id, err = u.Engine.Create(ctx, spec)
		return err
	})
	if err != nil {
		return err
	}
	u.timer.Container(u.id, spec.Name)
	u.tell(u.index, u.image.Name, spinup.Using(u.image.Image, digest))
	defer func() { u.starts.add(begun, time.Now()) }()
	return u.timed(spinup.Start, func() error { return u.Engine.Start(ctx, u.id) })
}

// idle keeps a primary container running.
var idle = [...]string{"tail", "-f", "/dev/null"}

func (u *containerStart) spec(network string) engine.Spec {
	img, labels := u.image, u.labels(u.index)
	labels[LabelName] = img.Name
	s := engine.Spec{
		Name:       fmt.Sprintf("%s%d-%s", nameOfAll(u.underway.id), u.index, img.Name),
		Image:      img.Image,
		Platform:   u.job.Platform,
		Entrypoint: img.Entrypoint,
		Command:    img.Command,
		Env:        img.env(u.index, u.job.Parallelism),
		Labels:     labels,
		Hostname:   img.Name,
		Mounts:     img.mounts(),
		WorkDir:    img.WorkDir,
		Network:    network,
		Aliases:    []string{img.Name},
	}
	if network == "" {
		s.Aliases = nil
	}
	if u.primary {
		// The init process reaps processes that a step leaves running.
		s.Init = true
		s.Entrypoint, s.Command = append(append([]string{}, img.Entrypoint...), img.Command...), nil
		if len(s.Entrypoint) == 0 {
			s.Entrypoint = idle[:]
		}
	}
	return s
}

// lastLines returns the last lines of a container's output.
func (u *containerStart) lastLines(ctx context.Context) string {
	var b strings.Builder
	if err := u.Engine.Logs(ctx, u.id, engine.LogOptions{Tail: 20}, &b); err != nil {
		return ""
	}
	const most = 4 << 10
	s := b.String()
	return s[max(0, len(s)-most):]
}
