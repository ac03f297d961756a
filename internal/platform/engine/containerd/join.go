package containerd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// joins is how the network and the pid mode begin of a container that shares another's
// namespace.
const joins = "container:"

// shimGroup has containers of one value share a shim (containerd, runtime/v2/README.md;
// so do the containers of a Kubernetes pod). A container that joins a network has its
// owner's shim, which runs already: one process less is started, and kept.
const shimGroup = "io.containerd.runc.v2.group"

// namespacePaths are where the namespaces are, as they are now, that a container with
// such modes shares with running ones. owner is whose network it has, the zero value
// where that is its own. Its error is of the first that does not run.
func (e *Engine) namespacePaths(ctx context.Context, network, pidMode string) (paths map[specs.LinuxNamespaceType]string, owner containers.Container, err error) {
	paths = map[specs.LinuxNamespaceType]string{}
	if id, ok := strings.CutPrefix(network, joins); ok {
		var pid int
		if owner, pid, err = e.initOf(ctx, id); err != nil {
			return nil, owner, err
		}
		paths[specs.NetworkNamespace] = fmt.Sprintf("/proc/%d/ns/net", pid)
	}
	if id, ok := strings.CutPrefix(pidMode, joins); ok {
		_, pid, err := e.initOf(ctx, id)
		if err != nil {
			return nil, owner, err
		}
		paths[specs.PIDNamespace] = fmt.Sprintf("/proc/%d/ns/pid", pid)
	}
	return paths, owner, nil
}

// errNotRunning says that a container has no namespaces to be shared.
var errNotRunning = errors.New("it does not run")

// initOf is a running container and its init.
func (e *Engine) initOf(ctx context.Context, id string) (containers.Container, int, error) {
	c, err := e.find(ctx, id)
	if err != nil {
		return c, 0, err
	}
	t, err := e.task(ctx, c.ID)
	if isGone(err) || err == nil && t.Status == task.Status_STOPPED {
		err = errNotRunning
	}
	if err != nil {
		return c, 0, fmt.Errorf("container %s, whose namespace is to be shared: %w", id, err)
	}
	return c, int(t.Pid), nil
}

// foresee notes whose namespaces and shim a new container is going to have. Where they
// do not run yet its start finds out.
func (e *Engine) foresee(ctx context.Context, d *draft) error {
	paths, owner, err := e.namespacePaths(ctx, d.spec.Network, d.spec.PIDMode)
	if isGone(err) || errors.Is(err, errNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	d.paths, d.shim = paths, owner.ID
	if r := recordOf(owner); r.Shim != "" {
		d.shim = r.Shim
	}
	return nil
}

// share puts the paths into a description, and reports whether that has changed it.
func share(spec *specs.Spec, paths map[specs.LinuxNamespaceType]string) (changed bool) {
	for i, n := range spec.Linux.Namespaces {
		if p := paths[n.Type]; p != "" && p != n.Path {
			spec.Linux.Namespaces[i].Path, changed = p, true
		}
	}
	return changed
}

// withOthers has the container join what was foreseen.
func (d *draft) withOthers(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	share(s, d.paths)
	if d.shim != "" {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[shimGroup] = d.shim
	}
	return nil
}

// joinOthers makes sure that the container's description has the namespaces that it
// shares as they are now, and returns whose network it has.
func (s *starting) joinOthers(ctx context.Context) (owner containers.Container, err error) {
	paths, owner, err := s.e.namespacePaths(ctx, s.record.Network, s.record.PIDMode)
	if err != nil || !share(s.spec, paths) {
		return owner, err
	}
	if s.c.Spec, err = typeurl.MarshalAny(s.spec); err != nil {
		return owner, err
	}
	_, err = s.e.api.ContainerService().Update(ctx, s.c, "spec")
	return owner, err
}
