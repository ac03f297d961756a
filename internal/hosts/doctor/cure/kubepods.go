package cure

import (
	"fmt"
	"io/fs"
	"path"
	"sort"
	"strings"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
)

// kubepodsDepth is the depth below the root to which the kubelet's groups are searched.
// The kubelet can have a configured root, as in kind.
const kubepodsDepth = 4

// Kubepods returns the control groups of a Kubernetes node below which dying groups hold
// enough for a squeeze, those that need it most first: the kubelet's slices, below which
// pods have died, and pods, in which containers have died. Each is a target of Memcg. It
// supports the kubelet's drivers cgroupfs (kubepods/burstable/pod…) and systemd
// (kubepods.slice/kubepods-burstable.slice/…). It returns ErrNothing if there is no such
// group, and holdfast.ErrNotFound if the kubelet has no groups on this host.
func Kubepods(h probe.Host) ([]string, error) {
	m, ok := h.Groups.Memory()
	if !ok {
		return nil, errNoMemory
	}
	tops, err := kubepodsTops(m)
	if err != nil {
		return nil, err
	}
	if len(tops) == 0 {
		return nil, holdfast.WithHint(fmt.Errorf("control groups of a kubelet (kubepods): %w", holdfast.ErrNotFound), "is this host a node of a Kubernetes cluster? --cgroup names any other group")
	}
	var found []left
	collect := bounded(func(g cgroup.Group) error {
		l, err := readLeft(g)
		if err == nil && l.worth() {
			found = append(found, l)
		}
		return err
	})
	for _, top := range tops {
		if err := top.Walk(collect); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: no control group of the kubelet has enough pages of dying groups below it", ErrNothing)
	}
	sort.SliceStable(found, func(i, j int) bool { return found[i].more(found[j]) })
	paths := make([]string, 0, len(found))
	for _, l := range found {
		paths = append(paths, l.group.Path)
	}
	return paths, nil
}

// kubepodsTops returns the groups that hold all pods.
func kubepodsTops(m cgroup.Mount) (tops []cgroup.Group, err error) {
	err = m.Group("/").Walk(func(g cgroup.Group, depth int) error {
		name := strings.TrimSuffix(path.Base(g.Path), ".slice")
		switch {
		case name == "kubepods" || strings.HasSuffix(name, "-kubepods"):
			tops = append(tops, g)
			return fs.SkipDir
		case depth > kubepodsDepth:
			return fs.SkipDir
		}
		return nil
	})
	return tops, err
}
