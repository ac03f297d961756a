package cli

import (
	"sync"
	"time"
)

// redraw is the interval of redrawing the progress.
const redraw = 100 * time.Millisecond

// redrawing redraws a picture a few times a second. The zero value has not begun.
type redrawing struct {
	stop chan struct{}
	done sync.WaitGroup
}

func (r *redrawing) begin(draw func()) {
	r.stop = make(chan struct{})
	r.done.Go(func() {
		t := time.NewTicker(redraw)
		defer t.Stop()
		for {
			select {
			case <-r.stop:
				return
			case <-t.C:
				draw()
			}
		}
	})
}

// end returns when the last drawing is done.
func (r *redrawing) end() {
	if r.stop != nil {
		close(r.stop)
	}
	r.done.Wait()
}
