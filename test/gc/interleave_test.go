package gc

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"holdfast/internal/hosts/gc"
	"holdfast/internal/platform/engine"
)

// The actions of users in an hour on a busy host, one each second, run as fast as the engine
// can. make test runs a minute of it. This runs the whole hour:
//
//	go test -run Interleavings -timeout 2h ./test/gc -acts 3600
var acts = flag.Int("acts", 60, "acts of TestInterleavings; 3600 are an hour's")

// most is the maximum number of concurrent containers.
const most = 40

// Users act on an engine while a collector runs continuously. Every container keeps its image and
// its networks, and can start.
func TestInterleavings(t *testing.T) {
	h := newHost(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p := &people{h: h, rand: rand.New(rand.NewPCG(seed, 0))}
	ctx, cancel := context.WithCancel(t.Context())
	var collecting sync.WaitGroup
	collected := 0
	collecting.Go(func() {
		c := h.collector(everything(), nil)
		for ctx.Err() == nil {
			cy, err := c.Collect(ctx, gc.ByRequest, nil)
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			collected += len(cy.Deleted)
		}
	})
	stop := sync.OnceFunc(func() { cancel(); collecting.Wait() })
	defer stop()
	p.first()
	for i := range *acts {
		if i%60 == 59 {
			p.check() // at the end of each minute
		}
		p.act()
	}
	stop()
	p.check()
	t.Logf("%d objects were collected, there are %d containers", collected, len(p.containers))
	if collected == 0 || len(p.containers) == 0 {
		t.Error("nothing happened")
	}
}

// people act at random, and record their objects.
type people struct {
	h          *host
	rand       *rand.Rand
	n          int
	containers map[string]bool // by id
	images     []string        // names of earlier and present images
	networks   []string
}

func (p *people) some(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[p.rand.IntN(len(list))]
}

// first creates the first container. The collector may remove the image before that.
func (p *people) first() {
	p.containers = map[string]bool{}
	for p.h.Context().Err() == nil && len(p.containers) == 0 {
		p.n++
		ref := fmt.Sprintf("app:%d", p.n)
		p.h.imageQuietly(ref, 20)
		p.images = append(p.images, ref)
		p.create()
	}
}

func (p *people) act() {
	p.n++
	switch p.rand.IntN(8) {
	case 0, 1:
		ref := fmt.Sprintf("app:%d", p.n)
		p.h.imageQuietly(ref, 20)
		p.images = append(p.images, ref)
	case 2:
		name := fmt.Sprintf("other:%d", p.n)
		if _, err := p.h.api.ImageTag(p.h.Context(), client.ImageTagOptions{Source: p.some(p.images), Target: name}); err == nil {
			p.images = append(p.images, name)
		}
	case 3:
		name := fmt.Sprintf("net-%d", p.n)
		p.h.network(name)
		p.networks = append(p.networks, name)
	case 4, 5:
		if len(p.containers) >= most {
			p.remove()
		}
		p.create()
	case 6:
		if id := p.some(p.ids()); id != "" {
			p.h.start(id)
		}
	case 7:
		if id := p.some(p.ids()); id != "" {
			if err := p.h.engine.Kill(p.h.Context(), id); err != nil {
				p.h.Error(err)
			}
		}
	}
}

// remove removes one container.
func (p *people) remove() {
	id := p.some(p.ids())
	if err := p.h.engine.Remove(p.h.Context(), id); err != nil {
		p.h.Error(err)
	}
	delete(p.containers, id)
}

func (p *people) ids() []string {
	var ids []string
	for id := range p.containers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// create creates a container of an image and in a network that may have been collected.
func (p *people) create() {
	image, net := p.some(p.images), p.some(append(p.networks, ""))
	if image == "" {
		return
	}
	id, err := p.h.engine.Create(p.h.Context(), engine.Spec{Name: fmt.Sprintf("c-%d", p.n), Image: image, Network: net, Command: []string{"/bin/sleep", "600"}})
	switch {
	case errors.Is(err, engine.ErrNoImage) || errdefs.IsNotFound(err):
	case err != nil:
		p.h.Error(err)
	case net != "" && !slices.Contains(p.h.names(), net):
		// The engine checks for the network only at the start (moby, daemon/create.go). This
		// network was already gone.
		if err := p.h.engine.Remove(p.h.Context(), id); err != nil {
			p.h.Error(err)
		}
	default:
		p.containers[id] = true
	}
}

// check checks all objects of the containers.
func (p *people) check() {
	p.h.Helper()
	holders, err := p.h.engine.Holders(p.h.Context())
	if err != nil {
		p.h.Fatal(err)
	}
	if len(holders) != len(p.containers) {
		p.h.Errorf("%d containers are there, %d were made", len(holders), len(p.containers))
	}
	for _, c := range holders {
		if _, _, err := p.h.engine.InspectImage(p.h.Context(), c.ImageID); err != nil {
			// The engine allows the removal of an image during a create (docs/gc.md). The
			// container keeps the layers.
			p.h.Logf("the image of %s went while it was being created: %v", c.Name, err)
		}
		p.h.start(c.ID)
	}
}
