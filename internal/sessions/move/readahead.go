package move

import (
	"errors"
	"io"
	"runtime"
	"sync"
)

// aheadBlock is the size in bytes of the pieces of readAhead. It is a multiple of the 64 KiB that
// age encrypts as one.
const aheadBlock = 1 << 20

// readAhead calls read with the content of r, which has size bytes. Goroutines read the next
// blocks meanwhile, as many at a time as there are CPUs: to decrypt an image takes longer than to
// write its files. They have ended when readAhead returns.
func readAhead(r io.ReaderAt, size int64, read func(io.Reader) error) error {
	n := runtime.GOMAXPROCS(0)
	a := &ahead{blocks: make(chan chan block, n), free: make(chan []byte, n+1), quit: make(chan struct{})}
	for range n + 1 { // one is with the reader
		a.free <- make([]byte, aheadBlock)
	}
	a.work.Go(func() { a.run(r, size) })
	err := read(a)
	close(a.quit)
	a.work.Wait()
	return err
}

// ahead is an io.Reader for one goroutine.
type ahead struct {
	blocks chan chan block // in order; closed after the last
	free   chan []byte
	quit   chan struct{}
	work   sync.WaitGroup

	whole, rest []byte // the block that is being read, and what is left of it
	err         error
}

type block struct {
	b   []byte
	err error
}

func (a *ahead) run(r io.ReaderAt, size int64) {
	defer close(a.blocks)
	for at := int64(0); at < size; at += aheadBlock {
		var b []byte
		select {
		case b = <-a.free:
		case <-a.quit:
			return
		}
		next := make(chan block, 1)
		a.work.Go(func() {
			b := b[:min(aheadBlock, size-at)]
			n, err := r.ReadAt(b, at)
			if errors.Is(err, io.EOF) && n == len(b) {
				err = nil
			}
			next <- block{b, err}
		})
		select {
		case a.blocks <- next:
		case <-a.quit:
			return
		}
	}
}

// Read implements io.Reader.
func (a *ahead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if a.whole != nil {
			a.free <- a.whole[:aheadBlock]
			a.whole = nil
		}
		next, ok := <-a.blocks
		if !ok {
			a.err = io.EOF
			continue
		}
		b := <-next
		a.whole, a.rest, a.err = b.b, b.b, b.err
		if b.err != nil {
			a.rest = nil
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}
