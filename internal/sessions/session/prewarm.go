package session

import (
	"context"
	"sync"
)

// prewarmCgroupAttach keeps the kernel's cgroup migration path active while the
// session is claimed and its container is created. Without it, the container's first
// process waits in the kernel when the engine attaches it to its cgroups, for most of
// a tenth of a boot. One boot at a time does this, on behalf of all concurrent boots.
// Calling stop ends it; stop is idempotent. A warm container needs no prewarming,
// because its process is already attached.
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
