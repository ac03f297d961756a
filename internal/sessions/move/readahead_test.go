package move

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
)

// Blocks arrive in order and complete, for all sizes around that of a block.
func TestReadAhead(t *testing.T) {
	for _, size := range []int{0, 1, aheadBlock - 1, aheadBlock, aheadBlock + 1, 7*aheadBlock + 5} {
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(rand.Uint32())
		}
		err := readAhead(bytes.NewReader(want), int64(size), func(r io.Reader) error {
			got, err := io.ReadAll(r)
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes arrive as %d other ones", size, len(got))
			}
			return err
		})
		if err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// failing cannot be read from a place on.
type failing struct {
	io.ReaderAt
	from int64
	err  error
}

func (f failing) ReadAt(p []byte, at int64) (int, error) {
	if at+int64(len(p)) > f.from {
		return 0, f.err
	}
	return f.ReaderAt.ReadAt(p, at)
}

// A block that cannot be read is an error at its place. A caller that reads no further does not
// wait for the rest.
func TestReadAheadEnds(t *testing.T) {
	want := errors.New("the disk is broken")
	all := make([]byte, 9*aheadBlock)
	err := readAhead(failing{bytes.NewReader(all), 5 * aheadBlock, want}, int64(len(all)), func(r io.Reader) error {
		n, err := io.Copy(io.Discard, r)
		if n != 5*aheadBlock {
			t.Errorf("%d bytes were read before the error", n)
		}
		if _, again := r.Read(make([]byte, 1)); !errors.Is(again, want) {
			t.Errorf("the next read: %v", again)
		}
		return err
	})
	if !errors.Is(err, want) {
		t.Errorf("%v", err)
	}
	enough := errors.New("enough")
	err = readAhead(bytes.NewReader(all), int64(len(all)), func(r io.Reader) error {
		_, err := io.ReadFull(r, make([]byte, 10))
		return errors.Join(err, enough)
	})
	if !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
}
