// Package scene has the pulls with which the measurement of pulls is tested: on a real
// engine, with a real registry and a proxy between them that injects faults. The recorder
// in test/spinup/record saves their streams as fixtures.
package scene

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"holdfast/internal/platform/engine"
	"holdfast/test/lab/registry"
)

// Env is the environment of the scenes.
type Env struct {
	Engine   engine.Engine
	Registry *registry.Registry
	Proxy    *registry.Proxy
	Guarded  *registry.Registry // asks for Login
	Full     engine.Engine      // an engine on a disk of FullSize
}

// FullSize is too small for the image of the scene "no-space", in bytes.
const FullSize = 96 << 20

// Login returns the login that Env.Guarded requires.
func Login() registry.Options { return registry.Options{User: "alice", Password: "secret"} }

// Stream is the recorded stream of one pull.
type Stream struct {
	Name   string
	Image  string
	Begun  time.Time
	Events []engine.PullEvent
	Ended  time.Time
	Err    error
	Sizes  map[string]int64 // compressed bytes by digest, of all the image's layers
}

// Pull pulls an image and records the stream. It also passes each event to each, if that
// is not nil.
func Pull(ctx context.Context, e engine.Engine, ref string, o engine.PullOptions, each func(engine.PullEvent)) Stream {
	s := Stream{Image: ref, Begun: time.Now()}
	for ev, err := range e.Pull(ctx, ref, o) {
		if err != nil {
			s.Err = err
			continue
		}
		s.Events = append(s.Events, ev)
		if each != nil {
			each(ev)
		}
	}
	s.Ended = time.Now()
	return s
}

// Scene plays one story and returns its pulls.
type Scene struct {
	Name string
	Play func(ctx context.Context, e Env) ([]Stream, error)
}

// Scenes returns all scenes. Each has its own layers, so their order does not matter.
func Scenes() []Scene {
	return []Scene{
		{"plain", plain},
		{"throttled", throttled},
		{"cut", cutResumed},
		{"joined", joined},
		{"joined-late", joinedLate},
		{"partial", partial},
		{"up-to-date", upToDate},
		{"missing", missing},
		{"unauthorized", unauthorized},
		{"no-platform", noPlatform},
		{"no-space", noSpace},
		{"timed", timed},
	}
}

// Layers makes layers of the given sizes with seeds from seed on.
func Layers(seed uint64, sizes ...int64) []registry.Layer {
	var out []registry.Layer
	for i, size := range sizes {
		out = append(out, registry.Layer{Seed: seed + uint64(i), Size: size, Stored: true})
	}
	return out
}

// Push puts an image of layers into the registry as name.
func (e Env) Push(ctx context.Context, name string, layers []registry.Layer) (map[string]int64, error) {
	image, err := registry.Image(runtime.GOARCH, layers...)
	if err != nil {
		return nil, err
	}
	return e.Registry.Push(ctx, image, name, registry.Options{})
}

// through returns the name of an image through the proxy.
func (e Env) through(name string) string { return e.Proxy.Host() + "/" + name }

func one(s Stream, name string, sizes map[string]int64) []Stream {
	s.Name, s.Sizes = name, sizes
	return []Stream{s}
}

func plain(ctx context.Context, e Env) ([]Stream, error) {
	// Five layers: the engine usually downloads three at a time, so two wait. Two of
	// them are too small for the engine to report their download.
	sizes, err := e.Push(ctx, "scene/plain:1", Layers(100, 24<<20, 12<<20, 3<<20, 100_000, 1_000))
	if err != nil {
		return nil, err
	}
	s := Pull(ctx, e.Engine, e.through("scene/plain:1"), engine.PullOptions{}, nil)
	return one(s, "plain", sizes), s.Err
}

func throttled(ctx context.Context, e Env) ([]Stream, error) {
	sizes, err := e.Push(ctx, "scene/throttled:1", Layers(200, 8<<20, 5<<20, 3<<20, 2<<20))
	if err != nil {
		return nil, err
	}
	e.Proxy.Set(registry.Faults{Rate: 8 << 20})
	defer e.Proxy.Set(registry.Faults{})
	s := Pull(ctx, e.Engine, e.through("scene/throttled:1"), engine.PullOptions{}, nil)
	return one(s, "throttled", sizes), s.Err
}

func cutResumed(ctx context.Context, e Env) ([]Stream, error) {
	layers := Layers(300, 12<<20, 6<<20)
	sizes, err := e.Push(ctx, "scene/cut:1", layers)
	if err != nil {
		return nil, err
	}
	e.Proxy.Set(registry.Faults{Rate: 32 << 20, Cut: map[string]int64{largest(sizes): 7_000_000}})
	defer e.Proxy.Set(registry.Faults{})
	s := Pull(ctx, e.Engine, e.through("scene/cut:1"), engine.PullOptions{}, nil)
	return one(s, "cut", sizes), s.Err
}

func largest(sizes map[string]int64) string {
	var best string
	for digest, size := range sizes {
		if best == "" || size > sizes[best] {
			best = digest
		}
	}
	return best
}

// joined begins a second pull when the first one has a part of each layer.
func joined(ctx context.Context, e Env) ([]Stream, error) {
	sizes, err := e.Push(ctx, "scene/joined:1", Layers(400, 16<<20, 10<<20, 4<<20, 2<<20))
	if err != nil {
		return nil, err
	}
	e.Proxy.Set(registry.Faults{Rate: 8 << 20})
	defer e.Proxy.Set(registry.Faults{})
	return e.join(ctx, "joined", sizes, func(ev engine.PullEvent) bool { return ev.Current > 4<<20 })
}

// joinedLate begins the second pull when the first one has everything except the end of
// the largest layer.
func joinedLate(ctx context.Context, e Env) ([]Stream, error) {
	sizes, err := e.Push(ctx, "scene/joined-late:1", Layers(450, 16<<20, 2<<20, 1<<20))
	if err != nil {
		return nil, err
	}
	release := make(chan struct{})
	e.Proxy.Set(registry.Faults{Rate: 64 << 20, Hold: release, HoldAfter: 16<<20 - 100_000})
	defer e.Proxy.Set(registry.Faults{})
	time.AfterFunc(2*time.Second, func() { close(release) })
	done := 0
	return e.join(ctx, "joined-late", sizes, func(ev engine.PullEvent) bool {
		if ev.Status == "Download complete" {
			done++
		}
		return done == 2
	})
}

// join begins a second pull of scene/NAME:1 when an event of the first one matches when.
func (e Env) join(ctx context.Context, name string, sizes map[string]int64, when func(engine.PullEvent) bool) ([]Stream, error) {
	ref := e.through("scene/" + name + ":1")
	second := make(chan Stream, 1)
	begun := false
	first := Pull(ctx, e.Engine, ref, engine.PullOptions{}, func(ev engine.PullEvent) {
		if !begun && when(ev) {
			begun = true
			go func() { second <- Pull(ctx, e.Engine, ref, engine.PullOptions{}, nil) }()
		}
	})
	if !begun {
		return nil, errors.Join(errors.New("the first pull was over before a second could join"), first.Err)
	}
	other := <-second
	first.Name, first.Sizes = name+"-first", sizes
	other.Name, other.Sizes = name+"-second", sizes
	return []Stream{first, other}, errors.Join(first.Err, other.Err)
}

func partial(ctx context.Context, e Env) ([]Stream, error) {
	base := Layers(500, 5<<20, 4<<20)
	if _, err := e.Push(ctx, "scene/base:1", base); err != nil {
		return nil, err
	}
	sizes, err := e.Push(ctx, "scene/partial:1", append(base, Layers(550, 6<<20, 2<<20)...))
	if err != nil {
		return nil, err
	}
	if s := Pull(ctx, e.Engine, e.through("scene/base:1"), engine.PullOptions{}, nil); s.Err != nil {
		return nil, s.Err
	}
	s := Pull(ctx, e.Engine, e.through("scene/partial:1"), engine.PullOptions{}, nil)
	return one(s, "partial", sizes), s.Err
}

func upToDate(ctx context.Context, e Env) ([]Stream, error) {
	sizes, err := e.Push(ctx, "scene/up-to-date:1", Layers(600, 1<<20))
	if err != nil {
		return nil, err
	}
	if s := Pull(ctx, e.Engine, e.through("scene/up-to-date:1"), engine.PullOptions{}, nil); s.Err != nil {
		return nil, s.Err
	}
	s := Pull(ctx, e.Engine, e.through("scene/up-to-date:1"), engine.PullOptions{}, nil)
	return one(s, "up-to-date", sizes), s.Err
}

// refused returns a stream that has to end in an error.
func refused(s Stream, name string) ([]Stream, error) {
	if s.Err == nil {
		return nil, fmt.Errorf("%s: the pull succeeded", name)
	}
	return one(s, name, nil), nil
}

func missing(ctx context.Context, e Env) ([]Stream, error) {
	if _, err := e.Push(ctx, "scene/missing:1", Layers(700, 1_000)); err != nil {
		return nil, err
	}
	return refused(Pull(ctx, e.Engine, e.through("scene/missing:2"), engine.PullOptions{}, nil), "missing")
}

func unauthorized(ctx context.Context, e Env) ([]Stream, error) {
	image, err := registry.Image(runtime.GOARCH, Layers(800, 1_000)...)
	if err != nil {
		return nil, err
	}
	if _, err := e.Guarded.Push(ctx, image, "scene/guarded:1", Login()); err != nil {
		return nil, err
	}
	return refused(Pull(ctx, e.Engine, e.Guarded.Host()+"/scene/guarded:1", engine.PullOptions{}, nil), "unauthorized")
}

func noPlatform(ctx context.Context, e Env) ([]Stream, error) {
	image, err := registry.Image("s390x", Layers(900, 1_000)...)
	if err != nil {
		return nil, err
	}
	if err := e.Registry.PushList(ctx, image, v1.Platform{OS: "linux", Architecture: "s390x"}, "scene/list:1"); err != nil {
		return nil, err
	}
	return refused(Pull(ctx, e.Engine, e.through("scene/list:1"), engine.PullOptions{}, nil), "no-platform")
}

// noSpace has one layer that fits on the disk, and one that does not.
func noSpace(ctx context.Context, e Env) ([]Stream, error) {
	if _, err := e.Push(ctx, "scene/no-space:1", Layers(1000, 4<<20, FullSize)); err != nil {
		return nil, err
	}
	return refused(Pull(ctx, e.Full, e.through("scene/no-space:1"), engine.PullOptions{}, nil), "no-space")
}

// timed is slow enough, with large enough layers, to compare its times with those of the
// proxy and of the engine's debug log.
func timed(ctx context.Context, e Env) ([]Stream, error) {
	sizes, err := e.Push(ctx, "scene/timed:1", Layers(1100, 24<<20, 16<<20, 8<<20, 1<<20))
	if err != nil {
		return nil, err
	}
	e.Proxy.Set(registry.Faults{Rate: 40 << 20})
	defer e.Proxy.Set(registry.Faults{})
	s := Pull(ctx, e.Engine, e.through("scene/timed:1"), engine.PullOptions{}, nil)
	return one(s, "timed", sizes), s.Err
}
