package cure

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
)

// kubepodsDepth is how far below the root the kubelet's groups are looked for: it can be
// told a root of its own, and kind has one.
const kubepodsDepth = 4

// Kubepods are the control groups of a Kubernetes node below which dead ones have left
// something worth a squeeze, those that need it most first: the kubelet's slices, where
// pods are dead, and pods, where containers are. Each is a target of Memcg. It knows the
// kubelet's drivers cgroupfs (kubepods/burstable/pod…) and systemd
// (kubepods.slice/kubepods-burstable.slice/…). ErrNothing; holdfast.ErrNotFound where the
// kubelet has no groups here.
func Kubepods(h probe.Host) ([]string, error) {
	m, ok := h.Groups.Memory()
	if !ok {
		return nil, errNoMemory
	}
	tops, err := kubepodsTops(m.Group("/"), 0)
	if err != nil {
		return nil, err
	}
	if len(tops) == 0 {
		return nil, holdfast.WithHint(fmt.Errorf("control groups of a kubelet (kubepods): %w", holdfast.ErrNotFound), "is this host a node of a Kubernetes cluster? --cgroup names any other group")
	}
	var found []left
	seen := 0
	for _, top := range tops {
		if err := worthBelow(top, 0, &seen, &found); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: no control group of the kubelet's has pages of dead ones below it that are worth it", ErrNothing)
	}
	slices.SortStableFunc(found, func(a, b left) int {
		switch {
		case a.more(b):
			return -1
		case b.more(a):
			return 1
		}
		return 0
	})
	paths := make([]string, 0, len(found))
	for _, l := range found {
		paths = append(paths, l.group.Path)
	}
	return paths, nil
}

// kubepodsTops finds the groups that hold all pods.
func kubepodsTops(g cgroup.Group, depth int) (tops []cgroup.Group, err error) {
	if depth > kubepodsDepth {
		return nil, nil
	}
	children, err := g.Children()
	if err != nil {
		return nil, ignoreGone(err)
	}
	for _, c := range children {
		name := strings.TrimSuffix(path.Base(c.Path), ".slice")
		if name == "kubepods" || strings.HasSuffix(name, "-kubepods") {
			tops = append(tops, c)
			continue
		}
		below, err := kubepodsTops(c, depth+1)
		if err != nil {
			return nil, err
		}
		tops = append(tops, below...)
	}
	return tops, nil
}

// worthBelow collects the groups from g on down that are worth a squeeze.
func worthBelow(g cgroup.Group, depth int, seen *int, found *[]left) error {
	if *seen++; *seen > maxGroups || depth > maxDepth {
		return fmt.Errorf("there are too many control groups (looked at %d)", *seen)
	}
	l, err := lookLeft(g)
	if err != nil {
		return ignoreGone(err)
	}
	if l.worth() {
		*found = append(*found, l)
	}
	children, err := g.Children()
	if err != nil {
		return ignoreGone(err)
	}
	for _, c := range children {
		if err := worthBelow(c, depth+1, seen, found); err != nil {
			return err
		}
	}
	return nil
}
