package process

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// Memory is returned once after a time of work, and not while the process works.
func TestRest(t *testing.T) {
	const mib = 1 << 20
	var r rest
	for i, c := range []struct {
		now  heap
		want bool
		why  string
	}{
		{heap{100 * mib, 20 * mib, 60 * mib}, false, "the first look"},
		{heap{160 * mib, 20 * mib, 60 * mib}, false, "it works"},
		{heap{165 * mib, 20 * mib, 60 * mib}, true, "it is at rest"},
		{heap{166 * mib, 20 * mib, 31 * mib}, false, "nothing was done since"},
		{heap{168 * mib, 20 * mib, 31 * mib}, false, "little was done since"},
		{heap{175 * mib, 20 * mib, 27 * mib}, false, "little is unused"},
		{heap{180 * mib, 20 * mib, 40 * mib}, true, "it is at rest again"},
	} {
		if got := r.over(c.now); got != c.want {
			t.Errorf("look %d: %v (%s)", i, got, c.why)
		}
	}
}

// The figures are those of this process, and the kernel gets back what a burst has used.
func TestHeapFigures(t *testing.T) {
	before := readHeap()
	for range 64 {
		runtime.KeepAlive(make([]byte, 1<<20))
	}
	burst := readHeap()
	if burst.allocated-before.allocated < 64<<20 || burst.live == 0 {
		t.Errorf("%+v, then %+v", before, burst)
	}
	debug.FreeOSMemory()
	if after := readHeap(); after.resident > burst.live+8<<20 {
		t.Errorf("%+v, then %+v", burst, after)
	}
}
