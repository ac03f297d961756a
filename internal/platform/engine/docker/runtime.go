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

var _ engine.RuntimeTester = (*Engine)(nil)

// TestRuntime runs a container with the runtime.
func (e *Engine) TestRuntime(ctx context.Context, name string) error {
	info, err := e.api().Info(ctx, client.InfoOptions{})
	if err != nil {
		return e.fail(ctx, err, "read the engine's runtimes")
	}
	if _, ok := info.Info.Runtimes[name]; !ok && !strings.Contains(name, ".") { // io.containerd.NAME.v1 need not be registered
		known := slices.Sorted(maps.Keys(info.Info.Runtimes))
		return holdfast.WithHint(fmt.Errorf("the engine has no runtime %q, it has %s: %w", name, strings.Join(known, ", "), holdfast.ErrNotFound),
			fmt.Sprintf(`install it, add it to "runtimes" in /etc/docker/daemon.json, and reload the engine; docs/untrusted-code.md says how for %s`, name))
	}
	return engine.TryRuntime(ctx, e, name, "docker run --rm --runtime="+name)
}
