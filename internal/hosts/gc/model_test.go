package gc

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// model is an engine in memory. It refuses removals by the rules of Docker. Like Docker,
// it removes a network that only containers without a start name (moby, network prune
// checks live endpoints).
type model struct {
	mu         sync.Mutex
	now        time.Time
	next       int
	images     map[string]*Image
	containers map[string]*Container
	networks   map[string]*engine.Network
	layerSize  map[string]int64
	removed    []string
	wrong      []string // removals of objects in use
	// between is called before each query, never before a removal.
	between func(*model)
	// told are the images in the last list of containers. inspected is the image of the
	// last query. They are nil and "" before the first.
	told      map[string]bool
	inspected string
	down      bool // the engine does not answer
	// activity returns the engine's activity; nil means none.
	activity func(ctx context.Context, until time.Time) []engine.Activity
	root     string
	overlay  bool // its files are in root, as of overlay2
	// snapshots and dirs are the answers of an engine with the containerd image store.
	snapshots string
	dirs      []string
}

func newModel(now time.Time) *model {
	return &model{
		now: now, images: map[string]*Image{}, containers: map[string]*Container{},
		networks: map[string]*engine.Network{}, layerSize: map[string]int64{},
	}
}

func (m *model) id(prefix string) string {
	m.next++
	return fmt.Sprintf("%s%d", prefix, m.next)
}

// The actions of other clients. They never fail: a missing object is ignored.

func (m *model) pull(ref string, layers []string, parent string) string {
	id := m.id("sha256:image")
	for _, l := range layers {
		if _, ok := m.layerSize[l]; !ok {
			m.layerSize[l] = int64(100 + len(m.layerSize))
		}
	}
	m.images[id] = &Image{
		Image:  engine.Image{ID: id, Created: m.now.Add(-1000 * time.Hour), Parent: parent},
		Layers: layers, LastUse: m.now,
	}
	m.tag(ref, id)
	return id
}

// tag gives a name to an image, and removes it from another image.
func (m *model) tag(ref, id string) {
	if m.images[id] == nil {
		return
	}
	for _, img := range m.images {
		img.Refs = slices.DeleteFunc(img.Refs, func(r string) bool { return r == ref })
	}
	m.images[id].Refs = append(m.images[id].Refs, ref)
	m.images[id].LastUse = m.now
}

func (m *model) create(image, network string) string {
	if m.images[image] == nil {
		return ""
	}
	h := engine.Holder{ID: m.id("container"), ImageID: image, State: "created", Created: m.now}
	h.Name = h.ID
	if n := m.networks[network]; n != nil {
		h.Networks = []string{n.Name} // the id is told of started ones only
	}
	m.containers[h.ID] = &Container{Holder: h, LastUse: m.now}
	m.images[image].LastUse = m.now
	return h.ID
}

func (m *model) start(id string) {
	c := m.containers[id]
	if c == nil || len(c.Networks) > 0 && m.network(c.Networks[0]) == nil {
		return
	}
	c.State = "running"
}

func (m *model) stop(id string) {
	if c := m.containers[id]; c != nil && c.State == "running" {
		c.State, c.LastUse = "exited", m.now
		if img := m.images[c.ImageID]; img != nil {
			img.LastUse = m.now
		}
	}
}

func (m *model) network(name string) *engine.Network {
	for _, n := range m.networks {
		if n.Name == name || n.ID == name {
			return n
		}
	}
	return nil
}

func (m *model) addNetwork() string {
	id := m.id("network")
	m.networks[id] = &engine.Network{ID: id, Name: "net-" + id, Created: m.now}
	return id
}

// The objects in use, by the state of the model.

func (m *model) imageUsed(id string) bool {
	for _, c := range m.containers {
		if c.ImageID == id {
			return true
		}
	}
	return false
}

// wrongImage reports whether the caller removes an image against the last answer that it got.
func (m *model) wrongImage(id string) bool { return m.imageUsed(id) && (m.told == nil || m.told[id]) }

func (m *model) networkUsed(n *engine.Network, states ...string) bool {
	for _, c := range m.containers {
		named := slices.Contains(c.Networks, n.Name) || slices.Contains(c.Networks, n.ID)
		if named && (len(states) == 0 || slices.Contains(states, c.State)) {
			return true
		}
	}
	return false
}

// state returns the State that a reader would build from the engine.
func (m *model) state() State {
	s := State{Now: m.now, LayerSize: m.layerSize}
	for _, k := range sortedKeys(m.images) {
		img := *m.images[k]
		img.Refs = slices.Clone(img.Refs)
		s.Images = append(s.Images, img)
	}
	for _, k := range sortedKeys(m.containers) {
		s.Containers = append(s.Containers, *m.containers[k])
	}
	for _, k := range sortedKeys(m.networks) {
		s.Networks = append(s.Networks, Network{*m.networks[k], m.networks[k].Created})
	}
	return s
}

// size returns the size of all layers of all images.
func (m *model) size() int64 {
	seen, sum := map[string]bool{}, int64(0)
	for _, img := range m.images {
		for _, l := range img.Layers {
			if !seen[l] {
				seen[l] = true
				sum += m.layerSize[l]
			}
		}
	}
	return sum
}

// The engine as a Collector sees it.

func (m *model) ask() (func(), error) {
	m.mu.Lock()
	if m.between != nil {
		m.between(m)
	}
	if m.down {
		m.mu.Unlock()
		return nil, holdfast.ErrEngine
	}
	return m.mu.Unlock, nil
}

func (m *model) Info(context.Context) (engine.Info, error) {
	info := engine.Info{Name: "model", Socket: "/model", DataRoot: m.root}
	if m.overlay {
		info.StorageDriver, info.ImageStore = "overlay2", engine.GraphDriver
	}
	return info, nil
}

func (m *model) Images(context.Context) ([]engine.Image, error) {
	done, err := m.ask()
	if err != nil {
		return nil, err
	}
	defer done()
	var list []engine.Image
	for _, k := range sortedKeys(m.images) {
		img := m.images[k].Image
		img.Refs = slices.Clone(img.Refs)
		list = append(list, img)
	}
	return list, nil
}

func (m *model) InspectImage(_ context.Context, ref string) (engine.Image, []string, error) {
	done, err := m.ask()
	if err != nil {
		return engine.Image{}, nil, err
	}
	defer done()
	if img := m.image(ref); img != nil {
		m.inspected = img.ID
		out := img.Image
		out.Refs = slices.Clone(out.Refs)
		return out, img.Layers, nil
	}
	return engine.Image{}, nil, engine.ErrNoImage
}

func (m *model) image(ref string) *Image {
	for _, img := range m.images {
		if img.ID == ref || slices.Contains(img.Refs, ref) {
			return img
		}
	}
	return nil
}

func (m *model) Holders(context.Context) ([]engine.Holder, error) {
	done, err := m.ask()
	if err != nil {
		return nil, err
	}
	defer done()
	var list []engine.Holder
	m.told = map[string]bool{}
	for _, k := range sortedKeys(m.containers) {
		m.told[m.containers[k].ImageID] = true
		list = append(list, m.containers[k].Holder)
	}
	return list, nil
}

func (m *model) Inspect(_ context.Context, id string) (engine.Container, error) {
	done, err := m.ask()
	if err != nil {
		return engine.Container{}, err
	}
	defer done()
	c := m.containers[id]
	if c == nil {
		return engine.Container{}, holdfast.ErrNotFound
	}
	out := engine.Container{ID: id, Name: c.Name, State: c.State, Created: c.Created}
	if c.State == "exited" {
		out.FinishedAt = c.LastUse
	}
	return out, nil
}

func (m *model) Networks(context.Context, map[string]string) ([]engine.Network, error) {
	done, err := m.ask()
	if err != nil {
		return nil, err
	}
	defer done()
	var list []engine.Network
	for _, k := range sortedKeys(m.networks) {
		list = append(list, *m.networks[k])
	}
	return list, nil
}

func (m *model) Volumes(context.Context) ([]engine.Volume, error) { return nil, nil }

func (m *model) Activity(ctx context.Context, _, until time.Time) iter.Seq[engine.Activity] {
	return func(yield func(engine.Activity) bool) {
		if m.activity != nil {
			for _, a := range m.activity(ctx, until) {
				if !yield(a) {
					return
				}
			}
		}
		if until.IsZero() {
			<-ctx.Done()
		}
	}
}

func (m *model) RemoveImage(_ context.Context, ref string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return holdfast.ErrEngine
	}
	img := m.image(ref)
	if img != nil && m.inspected != "" && img.ID != m.inspected {
		m.wrong = append(m.wrong, ref+" is by now the name of "+img.ID)
	}
	switch {
	case img == nil:
		return holdfast.ErrNotFound
	case ref != img.ID && len(img.Refs) > 1:
		if m.wrongImage(img.ID) {
			m.wrong = append(m.wrong, "a name of used image "+img.ID)
		}
		img.Refs = slices.DeleteFunc(img.Refs, func(r string) bool { return r == ref })
		return nil
	case m.imageUsed(img.ID):
		if m.wrongImage(img.ID) {
			m.wrong = append(m.wrong, "used image "+img.ID)
		}
		return engine.ErrRefused
	}
	delete(m.images, img.ID)
	m.removed = append(m.removed, img.ID)
	return nil
}

func (m *model) RemoveStopped(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.containers[id]
	switch {
	case m.down:
		return holdfast.ErrEngine
	case c == nil:
		return holdfast.ErrNotFound
	case c.State == "running":
		m.wrong = append(m.wrong, "running container "+id)
		return engine.ErrRefused
	}
	delete(m.containers, id)
	m.removed = append(m.removed, id)
	return nil
}

func (m *model) RemoveUnusedNetwork(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.networks[id]
	switch {
	case m.down:
		return holdfast.ErrEngine
	case n == nil:
		return holdfast.ErrNotFound
	case m.networkUsed(n, "running"):
		m.wrong = append(m.wrong, "network of a running container "+id)
		return engine.ErrRefused
	case m.networkUsed(n):
		m.wrong = append(m.wrong, "network of a container that has yet to start "+id)
	}
	delete(m.networks, id)
	m.removed = append(m.removed, id)
	return nil
}

func (m *model) RemoveVolume(context.Context, string) error { return holdfast.ErrNotFound }

func (m *model) PruneBuildCache(context.Context, time.Duration, int64) (int64, error) { return 0, nil }

func (m *model) SnapshotRoot(context.Context) (string, error) { return m.snapshots, nil }

func (m *model) SnapshotDirs(context.Context, string) ([]string, error) { return m.dirs, nil }

func (m *model) WrittenDirs(context.Context, string) ([]string, error) { return m.dirs, nil }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { // by number, which is by age
		return len(a) - len(b) + strings.Compare(a, b)*boolInt(len(a) == len(b))
	})
	return keys
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
