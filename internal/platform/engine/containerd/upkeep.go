package containerd

import "sync"

// upkeep is how the care for the containers' network went last.
type upkeep struct {
	mu       sync.Mutex
	err      error
	failures int
}

// tendNet puts right what others have changed of the network. It is tried again
// every listenEvery; who starts a container tries, too.
func (e *Engine) tendNet() {
	err := e.net.Tend()
	e.upkeep.mu.Lock()
	defer e.upkeep.mu.Unlock()
	e.upkeep.err = err
	if err != nil {
		e.upkeep.failures++
	}
}

// Upkeep is why the containers' network, and their way out of this host, could not be
// looked after when that was due last, nil where it could, and how many times it could
// not since the Engine was opened. Run does it, every ten seconds.
func (e *Engine) Upkeep() (failures int, last error) {
	e.upkeep.mu.Lock()
	defer e.upkeep.mu.Unlock()
	return e.upkeep.failures, e.upkeep.err
}
