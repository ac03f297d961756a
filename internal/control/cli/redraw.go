package cli

import (
	"sync"
	"time"
)

// redraw is how often the picture of a long work is drawn anew.
const redraw = 100 * time.Millisecond

// redrawing draws a picture anew a few times a second. The zero one has not begun.
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
