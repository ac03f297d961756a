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

// joins is the prefix of a network or pid mode that shares another container's
// namespace.
const joins = "container:"

// shimGroup is a label: containers with the same value share a shim (containerd,
// runtime/v2/README.md), like the containers of a Kubernetes pod. A container that
// joins a network uses the running shim of the network's owner, which saves starting
// and keeping one process.
const shimGroup = "io.containerd.runc.v2.group"

// namespacePaths returns the present paths of the namespaces that a container with
// these modes shares with running ones. owner is the container whose network it
// joins, or the zero value. The error is that of the first container that does not
// run.
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

// errNotRunning means that a container has no namespaces to share.
var errNotRunning = errors.New("it does not run")

// initOf returns a running container and its init.
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

// findShared finds the namespaces and the shim that a new container will share. If their
// owner does not run yet, the container's start finds them.
func (e *Engine) findShared(ctx context.Context, d *draft) error {
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

// share puts the paths into a container's spec, and reports whether that has changed
// it.
func share(spec *specs.Spec, paths map[specs.LinuxNamespaceType]string) (changed bool) {
	for i, n := range spec.Linux.Namespaces {
		if p := paths[n.Type]; p != "" && p != n.Path {
			spec.Linux.Namespaces[i].Path, changed = p, true
		}
	}
	return changed
}

// withOthers makes the container join the namespaces that findShared found.
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

// joinOthers updates the paths of shared namespaces in the container's spec, and
// returns the container whose network it joins.
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
