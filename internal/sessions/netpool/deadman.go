package netpool

import (
	"fmt"

	"holdfast/internal/sessions/kill"
)

// expect tells the deadman of a container before it is started.
func (p *Pool) expect(id string) error {
	if p.deps.Deadman == nil {
		return nil
	}
	if err := p.deps.Deadman.Expect(id); err != nil {
		return fmt.Errorf("announcing what holds a network to the deadman: %w", err)
	}
	return nil
}

// hold hands over what runs. A deadman that cannot be told now is told later, by who
// implements it, or finds it by what it expects.
func (p *Pool) hold(holder *kill.Target) {
	if p.deps.Deadman == nil {
		return
	}
	if err := p.deps.Deadman.Hold(holder); err != nil {
		p.log.Error("handing what holds a network to the deadman", "container", holder.Name, "err", err)
	}
}

// forget ends both, of what is dead or removed.
func (p *Pool) forget(id string) {
	if p.deps.Deadman != nil {
		p.deps.Deadman.Forget(id)
	}
}
