package fact

import (
	"path"
	"strings"
)

// UnitGroup returns the group that a group's activity is attributed to: the container if the
// group is inside one, or else the group itself.
func UnitGroup(p string) string {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	for i, part := range parts {
		if containerID(part) != "" {
			return "/" + strings.Join(parts[:i+1], "/")
		}
	}
	return p
}

// containerID returns the id in a group's name: the 64 hexadecimal digits by which
// engines name a container's group (docker-<id>.scope, cri-containerd-<id>.scope).
func containerID(name string) string {
	for digits := range strings.FieldsFuncSeq(name, notHexadecimal) {
		if len(digits) == 64 {
			return digits
		}
	}
	return ""
}

func notHexadecimal(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') }

// ContainerID returns the id of the container that a group belongs to, "" for other
// groups.
func ContainerID(group string) string { return containerID(path.Base(UnitGroup(group))) }
