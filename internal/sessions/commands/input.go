package commands

import (
	"context"
	"io"
	"sync"
)

// input is the input of a command, which several callers may write. It holds no bytes: a
// write waits until the command reads them.
type input struct {
	pieces chan []byte
	over   chan struct{}
	once   sync.Once
	rest   []byte // of the reader
}

func newInput() *input { return &input{pieces: make(chan []byte), over: make(chan struct{})} }

// Read implements io.Reader, for one goroutine.
func (i *input) Read(p []byte) (int, error) {
	if len(i.rest) == 0 {
		select {
		case i.rest = <-i.pieces:
		case <-i.over:
			return 0, io.EOF
		}
	}
	n := copy(p, i.rest)
	i.rest = i.rest[n:]
	return n, nil
}

// write gives bytes to the command. It returns when the command takes them, ctx is done or
// the input has ended.
func (i *input) write(ctx context.Context, p []byte) {
	select {
	case i.pieces <- append([]byte(nil), p...):
	case <-i.over:
	case <-ctx.Done():
	}
}

// end ends the input. Only the first call has an effect.
func (i *input) end() { i.once.Do(func() { close(i.over) }) }
