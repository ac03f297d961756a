package e2b

import (
	"context"
	"io"
	"sync"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

// inputs are the connections that send input to commands. Each is opened by the first
// input, and stays until the command ends, so that inputs arrive in their order.
type inputs struct {
	life  context.Context
	agent *client.Client
	mu    sync.Mutex
	all   map[string]*input // by the command's id
	open  sync.WaitGroup
}

// input is one connection. It reads what its callers write.
type input struct {
	chunks chan []byte // nil ends it
	sizes  chan api.Size
	done   chan struct{} // the connection has ended
	rest   []byte
}

// Read implements io.Reader.
func (in *input) Read(p []byte) (int, error) {
	for len(in.rest) == 0 {
		select {
		case in.rest = <-in.chunks:
			if in.rest == nil {
				return 0, io.EOF
			}
		case <-in.done:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}

// put hands a chunk over. A command that has ended does not want it any more.
func (in *input) put(ctx context.Context, chunk []byte) error {
	select {
	case in.chunks <- chunk:
	case <-in.done:
	case <-ctx.Done():
		return ctx.Err() // the command does not read its input
	}
	return nil
}

func newInputs(life context.Context, agent *client.Client) *inputs {
	return &inputs{life: life, agent: agent, all: map[string]*input{}}
}

// of returns the connection to a command.
func (i *inputs) of(s sandbox, c holdfast.Command) *input {
	i.mu.Lock()
	defer i.mu.Unlock()
	if in := i.all[c.ID]; in != nil {
		return in
	}
	in := &input{chunks: make(chan []byte), sizes: make(chan api.Size), done: make(chan struct{})}
	i.all[c.ID] = in
	i.open.Go(func() {
		// The end of the command, or of the server, ends it.
		_, _ = i.agent.Attach(i.life, s.key(), c.ID, api.AttachRequest{Offset: c.Output}, api.Exec{Stdin: in, Resize: in.sizes}, nil)
		i.mu.Lock()
		delete(i.all, c.ID)
		i.mu.Unlock()
		close(in.done)
	})
	return in
}

// write sends an input. The command may end before it reads it.
func (i *inputs) write(ctx context.Context, s sandbox, c holdfast.Command, p []byte) error {
	if !c.Stdin {
		return invalid("the process has no input: start it with stdin")
	}
	if len(p) == 0 {
		return nil // an empty one would end it
	}
	return i.of(s, c).put(ctx, p)
}

// end ends the input of a command.
func (i *inputs) end(ctx context.Context, s sandbox, c holdfast.Command) error {
	if !c.Stdin {
		return invalid("the process has no input: start it with stdin")
	}
	return i.of(s, c).put(ctx, nil)
}

// resize sets the size of a command's terminal. Input that is sent later arrives later.
func (i *inputs) resize(ctx context.Context, s sandbox, c holdfast.Command, size api.Size) error {
	in := i.of(s, c)
	select {
	case in.sizes <- size:
	case <-in.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// wait waits until all connections have ended, after the end of life.
func (i *inputs) wait() { i.open.Wait() }
