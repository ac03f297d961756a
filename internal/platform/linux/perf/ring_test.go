package perf

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"
	"time"
)

// Records stay in the ring until they are freed. One goes past the ring's end.
func TestRing(t *testing.T) {
	r := &ring{mem: make([]byte, os.Getpagesize()), data: make([]byte, 96)}
	at := 0
	write := func(size int, fill byte) {
		rec := bytes.Repeat([]byte{fill}, size)
		binary.NativeEndian.PutUint16(rec[6:], uint16(size))
		for _, b := range rec {
			r.data[at%len(r.data)] = b
			at++
		}
		r.positions().Data_head = uint64(at)
	}
	take := func(want ...byte) {
		t.Helper()
		got, err := r.take(nil)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d records, want %d, %v", len(got), len(want), err)
		}
		for i, e := range got {
			size := int(binary.NativeEndian.Uint16(e.rec[6:]))
			if len(e.rec) != size || bytes.Count(e.rec, want[i:i+1]) != size-2 {
				t.Errorf("record %d is %x, want %q", i, e.rec, want[i])
			}
		}
	}
	write(32, 'a')
	write(40, 'b')
	take('a', 'b')
	take('a', 'b')
	r.free()
	write(48, 'c') // goes past the end
	write(24, 'd')
	take('c', 'd')
	r.free()
	take()
	write(32, 'e')
	binary.NativeEndian.PutUint16(r.data[(at-32)%len(r.data)+6:], 40)
	if _, err := r.take(nil); err == nil {
		t.Error("a record that is longer than what was written is accepted")
	}
}

// A buffer holds twice what comes between two Reads. On hosts with many CPUs buffers stay
// small.
func TestBuffers(t *testing.T) {
	stacks, none := layout{stacks: true}, layout{}
	for _, c := range []struct {
		hz, cpus int
		has      layout
		size     int
	}{
		{99, 2, stacks, 2 << 20}, {99, 8, stacks, 2 << 20}, {99, 9, stacks, 1 << 20}, {99, 64, stacks, minRing}, {99, 2, none, minRing},
		{999, 2, stacks, maxRing}, {999, 64, stacks, 2 << 20}, {999, 2, none, 4 << 20}, {999, 64, none, minRing}, {1, 512, stacks, minRing},
	} {
		size := ringBytes(c.hz, c.cpus, c.has)
		if size != c.size || every(size, c.hz, c.has) < minEvery {
			t.Errorf("%+v: %d bytes, read every %v", c, size, every(size, c.hz, c.has))
		}
	}
	if e := every(minRing, 99, stacks); e < 250*time.Millisecond || e > 300*time.Millisecond {
		t.Errorf("the smallest buffer is read every %v", e)
	}
}
