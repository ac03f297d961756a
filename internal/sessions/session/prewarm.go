package session

import (
	"context"
	"sync"
)

// prewarmCgroupAttach has the kernel ready, beside the claim and the create, for when the engine puts
// the container's first process into its control groups: the wait that there would be, and
// nothing else would fill, is most of a tenth of a boot. One boot at a time does it, for
// all. The func that it returns ends that; it may be called again. A warm container's
// process is where it belongs already.
func (m *Manager) prewarmCgroupAttach(warm bool) (stop func()) {
	if warm || m.deps.PrewarmCgroupAttach == nil || !m.prewarming.CompareAndSwap(false, true) {
		return func() {}
	}
	done := make(chan struct{})
	begun := m.tasks.Go(func(context.Context) {
		defer m.prewarming.Store(false)
		m.deps.PrewarmCgroupAttach(done)
	})
	if !begun {
		m.prewarming.Store(false)
	}
	return sync.OnceFunc(func() { close(done) })
}
