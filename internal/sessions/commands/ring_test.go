package commands

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"holdfast/internal/platform/frame"
)

// A reader of a ring gets every byte in its order and from its stream, or is told how many
// bytes are lost. What is kept is the end of the output, and within the bounds.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRing()
		var all []byte
		var kinds []frame.Kind
		var next byte
		write := func(k frame.Kind, n int) {
			p := make([]byte, n)
			for i := range p {
				p[i], next = next, next+1
				kinds = append(kinds, k)
			}
			all = append(all, p...)
			if got, err := r.writer(k).Write(p); got != n || err != nil {
				t.Fatalf("wrote %d, %v", got, err)
			}
		}
		size := rapid.OneOf(rapid.IntRange(0, 5), rapid.IntRange(0, 3*blockSize), rapid.Just(maxOutput+1))
		kind := rapid.SampledFrom([]frame.Kind{frame.Stdout, frame.Stderr})
		at := int64(0)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "write") {
				write(kind.Draw(t, "kind"), size.Draw(t, "size"))
				continue
			}
			p := r.read(at)
			lost, total := r.count()
			if p.at != max(at, lost) || total != int64(len(all)) || total-lost > maxOutput || len(r.blocks) > maxBlocks {
				t.Fatalf("from %d: at %d, lost %d of %d", at, p.at, lost, total)
			}
			if len(p.data) == 0 && p.at != total {
				t.Fatalf("no output at %d of %d", p.at, total)
			}
			end := p.at + int64(len(p.data))
			if !bytes.Equal(p.data, all[p.at:end]) {
				t.Fatalf("other bytes at %d", p.at)
			}
			for i := p.at; i < end; i++ {
				if kinds[i] != p.kind {
					t.Fatalf("byte %d is of stream %d, not %d", i, kinds[i], p.kind)
				}
			}
			at = end
		}
	})
}

// Output of single bytes that alternates between the streams is bounded, too.
func TestRingOfSmallBlocks(t *testing.T) {
	r := newRing()
	for i := range 2 * maxBlocks {
		_, _ = r.writer(frame.Stdout + frame.Kind(i%2)).Write([]byte{'x'}) // it never fails
	}
	if lost, all := r.count(); len(r.blocks) != maxBlocks || all != 2*maxBlocks || lost != maxBlocks {
		t.Errorf("%d blocks, %d lost of %d", len(r.blocks), lost, all)
	}
}

// A reader that waits is woken by output and by the end.
func TestRingWakes(t *testing.T) {
	r := newRing()
	p := r.read(0)
	if len(p.data) != 0 || p.over {
		t.Fatalf("%+v", p)
	}
	_, _ = r.writer(frame.Stdout).Write([]byte("x")) // it never fails
	<-p.more
	p = r.read(1)
	r.end()
	<-p.more
	if p = r.read(1); !p.over {
		t.Errorf("%+v", p)
	}
}
