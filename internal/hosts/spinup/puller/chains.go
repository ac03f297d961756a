package puller

import (
	"crypto/sha256"
	"sync"
)

// chains are the layers that pulls of one Puller are fetching now. An engine
// fetches a layer once for all pulls that want it on top of the same layers
// (moby, daemon/internal/distribution/xfer: transfers are keyed by their chain),
// and reports it to each. It counts for the pull that named it first.
type chains struct {
	mu    *sync.Mutex
	owner map[chain]*pass
}

// chain identifies a layer with all layers below it.
type chain [sha256.Size]byte

func newChains() chains { return chains{mu: new(sync.Mutex), owner: map[chain]*pass{}} }

// pass is the state of one pull in chains.
type pass struct {
	in   chains
	seen map[string]bool
	top  chain // of the layers so far, which come bottom first
	own  []chain
}

// enter begins a pull.
func (c chains) enter() *pass { return &pass{in: c, seen: map[string]bool{}} }

// shares processes the next line of a layer. It reports whether the line is the
// layer's first and another pull is fetching the layer. A present layer only
// counts as one of the layers below.
func (p *pass) shares(layer string, present bool) bool {
	if p.seen[layer] {
		return false
	}
	p.seen[layer] = true
	p.top = sha256.Sum256(append(p.top[:], layer...))
	if present {
		return false
	}
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	if p.in.owner[p.top] != nil {
		return true
	}
	p.in.owner[p.top] = p
	p.own = append(p.own, p.top)
	return false
}

// leave ends the pull: its layers are present, or the next pull fetches them.
func (p *pass) leave() {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	for _, c := range p.own {
		delete(p.in.owner, c)
	}
}
