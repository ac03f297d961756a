package agent

import (
	"time"

	"holdfast/internal/platform/linux/cgroup"
)

// easeLimit bounds how long a boot keeps the kernel ready; one that takes longer is not
// held up by that.
const easeLimit = 5 * time.Second

// ease shortens a boot, until done is closed.
func (a *Agent) ease(done <-chan struct{}) {
	if err := cgroup.ReadyAttach(done, easeLimit); err != nil {
		a.log.Debug("boots wait for the kernel", "err", err)
	}
}
