package docker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moby/moby/client"

	"holdfast"
	"holdfast/internal/platform/engine"
)

var _ engine.Tester = (*Engine)(nil)

// Try runs a container.
func (e *Engine) Try(ctx context.Context, t engine.Trial) error {
	if t.Runtime == "" {
		return engine.Try(ctx, e, t, "docker run --rm IMAGE")
	}
	if err := e.knows(ctx, t.Runtime); err != nil {
		return err
	}
	return engine.Try(ctx, e, t, "docker run --rm --runtime="+t.Runtime+" IMAGE")
}

// knows returns an error if the engine does not know a runtime. holdfast.ErrNotFound.
func (e *Engine) knows(ctx context.Context, name string) error {
	info, err := e.api().Info(ctx, client.InfoOptions{})
	if err != nil {
		return e.fail(ctx, err, "read the engine's runtimes")
	}
	if _, ok := info.Info.Runtimes[name]; ok || strings.Contains(name, ".") { // io.containerd.NAME.v1 need not be registered
		return nil
	}
	known := slices.Sorted(maps.Keys(info.Info.Runtimes))
	return holdfast.WithHint(fmt.Errorf("the engine has no runtime %q, it has %s: %w", name, strings.Join(known, ", "), holdfast.ErrNotFound),
		fmt.Sprintf(`install it, add it to "runtimes" in /etc/docker/daemon.json, and reload the engine; docs/untrusted-code.md says how for %s`, name))
}
