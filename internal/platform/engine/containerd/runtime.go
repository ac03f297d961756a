package containerd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// shimName is containerd's shim for runc, and for programs that take runc's
// arguments.
const shimName = "io.containerd.runc.v2"

// defaultRuntime is the name of the runtime without a configured program.
const defaultRuntime = "runc"

// runtimeRoots is the prefix of the state directories of runtimes other than the
// default, because their files differ from runc's.
const runtimeRoots = "/run/containerd/holdfast-runtime-"

var _ engine.Tester = (*Engine)(nil)

// badRuntime is the error of a program that a shim could not start.
func badRuntime(runtimes map[string]string) error {
	for name, program := range runtimes {
		if name == "" || strings.Contains(name, "/") || !filepath.IsAbs(program) {
			return fmt.Errorf("the runtime %q of containers is %q, not an absolute path", name, program)
		}
	}
	return nil
}

// runtime is containerd's setting for a Spec's runtime: the shim for runc starts
// another program in place of runc (containerd, api/types/runc/options/oci.proto).
// holdfast.ErrNotFound.
func (e *Engine) runtime(name string) (containers.RuntimeInfo, error) {
	info := containers.RuntimeInfo{Name: shimName}
	program, ok := e.cfg.Runtimes[name]
	switch {
	case !ok && (name == "" || name == defaultRuntime):
		return info, nil
	case !ok:
		known := append(slices.Sorted(maps.Keys(e.cfg.Runtimes)), defaultRuntime)
		return info, holdfast.WithHint(fmt.Errorf("there is no runtime %q, there is %s: %w", name, strings.Join(known, ", "), holdfast.ErrNotFound),
			fmt.Sprintf("install it, and name its program in engine.runtimes: {%s: /path/to/it}; docs/engines.md", name))
	}
	var err error
	info.Options, err = typeurl.MarshalAnyToProto(&options.Options{BinaryName: program, Root: runtimeRoots + name})
	return info, err
}

// Try runs a container.
func (e *Engine) Try(ctx context.Context, t engine.Trial) error {
	if _, err := e.runtime(t.Runtime); err != nil {
		return err
	}
	return engine.Try(ctx, e, t, fmt.Sprintf("ctr run --rm --runc-binary=%s IMAGE trial COMMAND", cmp.Or(e.cfg.Runtimes[t.Runtime], defaultRuntime)))
}
