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
	pattern := make([]byte, 256+maxOutput)
	for i := range pattern {
		pattern[i] = byte(i)
	}
	rapid.Check(t, func(t *rapid.T) {
		r := newRing()
		type run struct { // output of one stream
			kind frame.Kind
			end  int64
		}
		var runs []run
		var all int64
		size := rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(1, 3*blockSize), rapid.Just(maxOutput+1-256))
		kind := rapid.SampledFrom([]frame.Kind{frame.Stdout, frame.Stderr})
		at := int64(0)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "write") {
				k, n := kind.Draw(t, "kind"), size.Draw(t, "size")
				if got, err := r.writer(k).Write(pattern[all%256:][:n]); got != n || err != nil {
					t.Fatalf("wrote %d, %v", got, err)
				}
				all += int64(n)
				runs = append(runs, run{k, all})
				continue
			}
			p := r.read(at)
			lost, total := r.count()
			if p.at != max(at, lost) || total != all || total-lost > maxOutput || len(r.blocks) > maxBlocks {
				t.Fatalf("from %d: at %d, lost %d of %d", at, p.at, lost, total)
			}
			if len(p.data) == 0 && p.at != total {
				t.Fatalf("no output at %d of %d", p.at, total)
			}
			if !bytes.Equal(p.data, pattern[p.at%256:][:len(p.data)]) {
				t.Fatalf("other bytes at %d", p.at)
			}
			end, start := p.at+int64(len(p.data)), int64(0)
			for _, x := range runs {
				if start < end && x.end > p.at && x.kind != p.kind {
					t.Fatalf("bytes %d to %d are of stream %d, not %d", start, x.end, x.kind, p.kind)
				}
				start = x.end
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
