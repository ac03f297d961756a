package engine

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"holdfast"
	"holdfast/internal/platform/linux/owner"
	"holdfast/internal/platform/linux/tinyelf"
)

// LabelTrial is on the container and the image of a trial. Its value is the process that
// makes it, as owner.Owner writes it.
const LabelTrial = "holdfast.trial"

// The objects of a trial.
const (
	trialImage   = "holdfast-trial:" // and a number
	trialProgram = "/trial"
	trialCode    = 42        // the program's exit code
	trialMemory  = 256 << 20 // bytes, including the sandbox's own memory
)

// Times of a trial.
const (
	cleanTime = 20 * time.Second // bounds removing its objects
	// trialAge is the age at which the objects of a trial whose process is not visible
	// from here count as left. A trial is bounded by a few minutes.
	trialAge = time.Hour
)

// ErrNoStart means that the engine answers, makes containers, and cannot start one: its
// runtime or the host's kernel lacks something.
var ErrNoStart = errors.New("the engine starts no container on this host")

// Trial is one test of an engine.
type Trial struct {
	Runtime string // as in Spec
	Network string // as in Spec
}

// Trier is an engine that Try can use.
type Trier interface {
	Engine
	Images(ctx context.Context) ([]Image, error)
	// RemoveImage removes an image that no container uses, by name.
	RemoveImage(ctx context.Context, ref string) error
}

// Try runs a container of a few hundred bytes and removes the container and its image,
// and what earlier trials of dead processes have left. by is a command that does the same
// by hand, for the hint. The adapters' Try methods call it; any goroutine may. The error
// is ErrNoStart if only the start failed.
func Try(ctx context.Context, e Trier, t Trial, by string) (err error) {
	self, err := owner.Self()
	if err != nil {
		return err
	}
	if err := sweepTrials(ctx, e, self); err != nil {
		return fmt.Errorf("remove what an earlier trial left: %w", err)
	}
	ref := fmt.Sprint(trialImage, time.Now().UnixNano()) // unique to this trial
	labels := map[string]string{LabelTrial: self.String()}
	archive, err := trialArchive(ref, labels)
	if err != nil {
		return fmt.Errorf("make the image of a trial: %w", err)
	}
	if err := e.Load(ctx, archive); err != nil {
		return err
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound(ctx)+cleanTime)
	defer cancel()
	defer func() { err = errors.Join(err, e.RemoveImage(clean, ref)) }()
	id, err := e.Create(ctx, Spec{
		Image: ref, Entrypoint: []string{trialProgram}, Labels: labels,
		Runtime: t.Runtime, Network: t.Network, Memory: trialMemory,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Remove(clean, id)) }()
	if err := e.Start(ctx, id); err != nil {
		return noStart(ctx, t.Runtime, err, by)
	}
	code, err := e.Wait(ctx, id)
	if err == nil && code != trialCode {
		err = fmt.Errorf("a program in a container ended with %d, not with %d: %w", code, trialCode, ErrNoStart)
	}
	return err
}

// bound returns the rest of ctx's time, 0 if it has no deadline.
func bound(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(0, time.Until(end))
}

// noStart explains the error of a start. It says nothing about the runtime if the engine
// was away or too slow.
func noStart(ctx context.Context, runtime string, err error, by string) error {
	if ctx.Err() != nil || errors.Is(err, holdfast.ErrEngine) || errors.Is(err, ErrInterrupted) {
		return err
	}
	hint := startHint(err.Error())
	if hint == "" {
		hint = "try it by hand with: " + by
	}
	if runtime != "" {
		return holdfast.WithHint(fmt.Errorf("the runtime %q: %w: %w", runtime, ErrNoStart, err), hint)
	}
	return holdfast.WithHint(fmt.Errorf("%w: %w", ErrNoStart, err), hint)
}

// sweepTrials removes what trials of dead processes have left. The image's name, which a
// container does not inherit by `docker commit`, and the owner tell such an object from
// others.
func sweepTrials(ctx context.Context, e Trier, self owner.Owner) error {
	containers, err := e.List(ctx, map[string]string{LabelTrial: ""})
	if err != nil {
		return err
	}
	for _, c := range containers {
		if strings.HasPrefix(c.Image, trialImage) && leftOver(self, c.Labels, c.Created) {
			err = errors.Join(err, e.Remove(ctx, c.ID))
		}
	}
	images, failed := e.Images(ctx)
	for _, i := range images {
		if !leftOver(self, i.Labels, i.Created) {
			continue
		}
		for _, ref := range i.Refs {
			if strings.HasPrefix(ref, trialImage) {
				err = errors.Join(err, ignoreGone(e.RemoveImage(ctx, ref)))
			}
		}
	}
	return errors.Join(err, failed)
}

// ignoreGone returns nil for an image that another process has removed meanwhile, or whose
// container another process removes just now.
func ignoreGone(err error) error {
	if errors.Is(err, holdfast.ErrNotFound) || errors.Is(err, ErrNoImage) || errors.Is(err, ErrRefused) {
		return nil
	}
	return err
}

// leftOver reports whether the object of a trial is of no use any more.
func leftOver(self owner.Owner, labels map[string]string, created time.Time) bool {
	by, err := owner.Parse(labels[LabelTrial])
	if err != nil {
		return false // not from a trial
	}
	switch self.FateOf(by) {
	case owner.Dead:
		return true
	case owner.Alive:
		return false
	}
	return time.Since(created) > trialAge
}

// trialArchive is an image of one program, as `docker save` writes it.
func trialArchive(ref string, labels map[string]string) (io.Reader, error) {
	program, err := tinyelf.Exit(goruntime.GOARCH, trialCode)
	if err != nil {
		return nil, err
	}
	return ProgramImage(ref, &tar.Header{Name: strings.TrimPrefix(trialProgram, "/"), Mode: 0o755}, program, v1.ConfigFile{
		OS: "linux", Architecture: goruntime.GOARCH, Created: v1.Time{Time: time.Now()},
		Author: ref, // makes the image different from that of another trial
		Config: v1.Config{Labels: labels},
	})
}
