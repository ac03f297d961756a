package tasks

// Signal wakes a goroutine that receives from it. Any goroutine may set it.
type Signal chan struct{}

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set wakes the receiver, now or when it receives the next time. It does not block.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default: // it is set already
	}
}
