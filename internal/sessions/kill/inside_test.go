package kill

import (
	"testing"

	"holdfast/internal/platform/linux/cgroup"
)

// The container that this process runs in is recognised by its control group, also if
// this process is not a descendant of its init.
func TestOwnContainerIsRecognised(t *testing.T) {
	o := &Opener{own: []cgroup.Group{{Point: "/sys/fs/cgroup", Path: "/docker/abc/below", V2: true}}}
	for path, want := range map[string]bool{"/docker/abc": true, "/docker/abc/below": true, "/docker/ab": false, "/docker/def": false} {
		if got := o.inside(&Target{groups: []cgroup.Group{{Point: "/sys/fs/cgroup", Path: path, V2: true}}}); got != want {
			t.Errorf("%s: inside is %v", path, got)
		}
	}
}
