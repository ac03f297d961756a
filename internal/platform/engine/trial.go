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
	"holdfast/internal/platform/linux/tinyelf"
)

// The objects of a trial. They have a label so that the garbage collector recognises
// them.
const (
	trialImage   = "holdfast-trial"
	trialLabel   = "holdfast.trial"
	trialProgram = "/trial"
	trialCode    = 42        // the program's exit code
	trialMemory  = 256 << 20 // bytes, including the sandbox's own memory
)

// cleanTime bounds removing the objects of a trial.
const cleanTime = 20 * time.Second

// Trier is an engine that TryRuntime can use.
type Trier interface {
	Engine
	// RemoveImage removes an image that no container uses, by name.
	RemoveImage(ctx context.Context, ref string) error
}

// TryRuntime runs a container of a few hundred bytes with a runtime that the engine
// knows, and removes the container and its image. by is a command that does the same
// by hand, for the hint. The adapters' TestRuntime methods call it; any goroutine
// may.
func TryRuntime(ctx context.Context, e Trier, runtime, by string) (err error) {
	ref := fmt.Sprintf("%s:%d", trialImage, time.Now().UnixNano()) // unique to this trial
	archive, err := trialArchive(ref)
	if err != nil {
		return fmt.Errorf("make the image of a trial: %w", err)
	}
	if err := e.Load(ctx, archive); err != nil {
		return err
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	defer func() { err = errors.Join(err, e.RemoveImage(clean, ref)) }()
	id, err := e.Create(ctx, Spec{
		Image: ref, Entrypoint: []string{trialProgram}, Labels: map[string]string{trialLabel: runtime},
		Runtime: runtime, Network: "none", Memory: trialMemory,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Remove(clean, id)) }()
	if err := e.Start(ctx, id); err != nil {
		return holdfast.WithHint(fmt.Errorf("the runtime %q starts no container: %w", runtime, err), "its output is above; try it with: "+by)
	}
	code, err := e.Wait(ctx, id)
	if err == nil && code != trialCode {
		err = fmt.Errorf("a program under the runtime %q ended with %d, not with %d", runtime, code, trialCode)
	}
	return err
}

// trialArchive is an image of one program, as `docker save` writes it.
func trialArchive(ref string) (io.Reader, error) {
	program, err := tinyelf.Exit(goruntime.GOARCH, trialCode)
	if err != nil {
		return nil, err
	}
	return ProgramImage(ref, &tar.Header{Name: strings.TrimPrefix(trialProgram, "/"), Mode: 0o755}, program, v1.ConfigFile{
		OS: "linux", Architecture: goruntime.GOARCH,
		Author: ref, // makes the image different from that of another trial
	})
}
