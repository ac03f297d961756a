package elffile

import (
	"testing"
	"time"
)

// A lookup that panics returns the zero value, and Bounded does not wait for one that hangs.
func TestBounded(t *testing.T) {
	if v, ok := Bounded(time.Minute, func() int { return 7 }); v != 7 || !ok {
		t.Errorf("result %v, in time %v", v, ok)
	}
	if v, ok := Bounded(time.Minute, func() int { panic("damaged") }); v != 0 || !ok {
		t.Errorf("panic: result %v, in time %v", v, ok)
	}
	release := make(chan struct{})
	defer close(release)
	if v, ok := Bounded(time.Millisecond, func() int { <-release; return 7 }); v != 0 || ok {
		t.Errorf("hang: result %v, in time %v", v, ok)
	}
}
