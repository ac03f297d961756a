package relay

import (
	"sync"

	"holdfast/internal/platform/linux/connfd"
)

// Exported is a pair of plain sockets that the relay serves no more and has not closed. The
// receiver owns the descriptors.
type Exported struct {
	Client, Upstream int
	State            State
}

// State is the state of an exported pair, for the relay that serves it next.
type State struct {
	// ToUpstream and ToClient are bytes that were read, and that the other side has not
	// accepted yet.
	ToUpstream []byte `json:"to_upstream,omitempty"`
	ToClient   []byte `json:"to_client,omitempty"`
	// Asked and Answered follow the frames of the client and of the server, these bytes
	// included. Asked is used with an Activity only.
	Asked    FrameState `json:"asked"`
	Answered FrameState `json:"answered"`
}

// FrameState is a position in a stream of WebSocket frames.
type FrameState struct {
	Header   []byte `json:"header,omitempty"`  // the part of a frame's header that was read
	Payload  uint64 `json:"payload,omitempty"` // bytes of the current frame's payload still to come
	SawClose bool   `json:"saw_close,omitempty"`
}

func (f *frames) state() FrameState {
	return FrameState{append([]byte(nil), f.head[:f.have]...), f.payload, f.sawClose}
}

func (s FrameState) frames() (f frames) {
	f.have = int8(copy(f.head[:], s.Header))
	f.payload, f.sawClose = s.Payload, s.SawClose
	return f
}

// Open returns the Spec of an exported pair with its connections. The caller sets the other
// fields. Open takes the descriptors over, also if it fails.
func (e Exported) Open() (Spec, error) {
	client, err := connfd.Open(e.Client)
	if err != nil {
		connfd.Conn{FDs: []int{e.Upstream}}.Close()
		return Spec{}, err
	}
	upstream, err := connfd.Open(e.Upstream)
	if err != nil {
		client.Close()
		return Spec{}, err
	}
	return Spec{Client: client, Upstream: upstream, ToUpstream: e.State.ToUpstream, ToClient: e.State.ToClient, before: &e.State}, nil
}

// Export calls the Export function of each pair that has one and is not ending, instead of
// serving it to its end. It returns when all these calls and their Done have returned. Pairs
// that are added later are served as usual. Any goroutine may call it while Run runs.
func (r *Relay) Export() {
	var all sync.WaitGroup
	for _, l := range r.loops {
		all.Add(1)
		if !l.post(command{export: &all}) { // its epoll failed
			all.Done()
		}
	}
	all.Wait()
}

// export exports the pairs of the loop.
func (l *loop) export(all *sync.WaitGroup) {
	for p := range l.pairs {
		if p.spec.Export == nil || p.leaving || p.gone || p.awaiting || p.client.discard || p.upstream.discard {
			continue
		}
		e := p.take()
		all.Add(1)
		spec := p.spec
		spec.Done = func() {
			defer all.Done()
			p.spec.Export(e)
			if p.spec.Done != nil {
				p.spec.Done()
			}
		}
		l.ended(p, spec)
	}
	all.Done()
}

// take removes the pair from its loop, with its sockets open.
func (p *socketPair) take() Exported {
	p.closed = true
	l := p.loop
	e := Exported{Client: p.client.fd, Upstream: p.upstream.fd, State: State{
		ToUpstream: p.client.rest(), ToClient: p.upstream.rest(), Asked: p.asked.state(), Answered: p.frames.state(),
	}}
	for _, s := range []*side{&p.client, &p.upstream} {
		l.forget(s)
		s.drop()
		s.fd = -1
	}
	delete(l.pairs, p)
	delete(l.timed, p)
	return e
}

// rest returns a copy of the bytes that the peer has not accepted.
func (s *side) rest() []byte { return append([]byte(nil), s.pending[s.sent:]...) }
