package containerd

import "sync"

// upkeep is the result of the last maintenance of the containers' network.
type upkeep struct {
	mu       sync.Mutex
	err      error
	failures int
}

// tendNet repairs the network if other programs have changed it. Run calls it every
// listenEvery.
func (e *Engine) tendNet(devices bool) {
	err := e.net.Tend(devices)
	e.upkeep.mu.Lock()
	defer e.upkeep.mu.Unlock()
	e.upkeep.err = err
	if err != nil {
		e.upkeep.failures++
	}
}

// Upkeep returns the error of the last maintenance of the containers' network and NAT
// rules, or nil, and the number of failures since the Engine was opened. Run
// maintains them every ten seconds.
func (e *Engine) Upkeep() (failures int, last error) {
	e.upkeep.mu.Lock()
	defer e.upkeep.mu.Unlock()
	return e.upkeep.failures, e.upkeep.err
}
