package commands

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"holdfast/internal/platform/frame"
)

// ring keeps the last bytes of a command's output, in the order in which they came. Each
// byte has an offset in the whole output. Its methods may be called from any goroutine.
// Only a write waits, and only for readers that hold the output.
type ring struct {
	mu      sync.Mutex
	blocks  []block
	size    int           // bytes in blocks
	next    int64         // offset of the next byte to come
	ended   bool          // no more bytes come
	changed chan struct{} // closed at the next change
	readers []*reader     // that writers wait for
	moved   chan struct{} // closed when one of them has read
}

// reader is a caller whose unread output is not written over, while it reads.
type reader struct {
	next int64 // offset of what it reads next
	at   time.Time
}

// block is output of one stream. Bytes are only appended to it.
type block struct {
	kind  frame.Kind
	start int64 // offset of its first byte
	data  []byte
}

// blockSize is the capacity of a block of a stream that writes much.
const blockSize = 8 << 10

func newRing() *ring { return &ring{changed: make(chan struct{}), moved: make(chan struct{})} }

// writer returns a writer of one stream. Its Write never fails.
func (r *ring) writer(k frame.Kind) ringWriter { return ringWriter{r, k} }

type ringWriter struct {
	r *ring
	k frame.Kind
}

func (w ringWriter) Write(p []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	for rest := p; len(rest) > 0; {
		w.r.awaitLocked()
		n := w.r.put(w.k, rest)
		rest = rest[n:]
	}
	w.r.wake()
	return len(p), nil
}

// awaitLocked waits until every reader that holds the output has read what the next block
// writes over. It gives up a reader that does not read.
func (r *ring) awaitLocked() {
	for {
		late := slices.IndexFunc(r.readers, func(x *reader) bool {
			return r.next+blockSize-x.next > maxOutput || r.blocksAfter(x.next) >= maxBlocks-1
		})
		if late < 0 {
			return
		}
		left := time.Until(r.readers[late].at.Add(holdLimit))
		if left <= 0 {
			r.readers = slices.Delete(r.readers, late, late+1)
			continue
		}
		moved := r.moved
		r.wake() // they have to read what was written until now
		r.mu.Unlock()
		select {
		case <-moved:
		case <-time.After(left):
		}
		r.mu.Lock()
	}
}

// blocksAfter returns the number of blocks with bytes at or after an offset.
func (r *ring) blocksAfter(offset int64) int {
	i, found := slices.BinarySearchFunc(r.blocks, offset, func(b block, at int64) int { return cmp.Compare(b.start, at) })
	if !found && i > 0 {
		i--
	}
	return len(r.blocks) - i
}

// hold makes writers wait for a reader at an offset.
func (r *ring) hold(offset int64) *reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := &reader{next: offset, at: time.Now()}
	r.readers = append(r.readers, x)
	return x
}

// release ends a hold. nil is none.
func (r *ring) release(x *reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers = slices.DeleteFunc(r.readers, func(o *reader) bool { return o == x })
	r.move()
}

// advance records that a reader has read up to an offset. nil is no reader.
func (r *ring) advance(x *reader, offset int64) {
	if x == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x.next, x.at = offset, time.Now()
	r.move()
}

func (r *ring) move() {
	close(r.moved)
	r.moved = make(chan struct{})
}

// put appends bytes to the last block or to a new one, and returns how many.
func (r *ring) put(k frame.Kind, p []byte) int {
	if last := len(r.blocks) - 1; last < 0 || r.blocks[last].kind != k || len(r.blocks[last].data) >= blockSize {
		r.blocks = append(r.blocks, block{kind: k, start: r.next})
	}
	b := &r.blocks[len(r.blocks)-1]
	n := min(len(p), blockSize-len(b.data))
	b.data = append(b.data, p[:n]...)
	r.next += int64(n)
	r.size += n
	for r.size > maxOutput || len(r.blocks) > maxBlocks {
		r.size -= len(r.blocks[0].data)
		r.blocks[0] = block{}
		r.blocks = r.blocks[1:]
	}
	return n
}

func (r *ring) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// end wakes all readers: no more output comes.
func (r *ring) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.wake()
}

// count returns the number of bytes that are no longer kept, and of all bytes.
func (r *ring) count() (lost, all int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first(), r.next
}

func (r *ring) first() int64 {
	if len(r.blocks) == 0 {
		return r.next
	}
	return r.blocks[0].start
}

// piece is output from an offset on.
type piece struct {
	kind frame.Kind
	at   int64  // offset of data; above the requested one if bytes in between are lost
	data []byte // empty: there is none yet; it is not to be changed
	more <-chan struct{}
	over bool // no more output comes
}

// read returns the output from an offset on, up to the end of a block.
func (r *ring) read(from int64) piece {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := piece{at: max(from, r.first()), more: r.changed}
	if p.at >= r.next {
		p.over = r.ended
		return p
	}
	i, found := slices.BinarySearchFunc(r.blocks, p.at, func(b block, at int64) int { return cmp.Compare(b.start, at) })
	if !found {
		i--
	}
	b := r.blocks[i]
	p.kind, p.data = b.kind, b.data[p.at-b.start:]
	return p
}
