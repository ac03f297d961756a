package session

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
)

// WarmPool has containers that were created before their sessions. Any goroutine may
// call its methods. They do not wait.
type WarmPool interface {
	// Ready reports whether Take would return a container of the template.
	Ready(template string) bool
	// Take gives a container to a session permanently: the caller kills and removes
	// it. It returns false if there is none.
	Take(template string) (WarmContainer, bool)
}

// WarmContainer is a running, frozen container whose server answers. For a template that saves
// memory it is a sandbox that runs nothing (see Mover.RestoreHeld). One goroutine uses it.
type WarmContainer interface {
	ID() string
	Name() string
	Address() string // host:port of its server
	// Network is its address in a network of the agent's; the zero value if it is in
	// another one. The session drops it.
	Network() netip.Addr
	// Target is already known to the deadman.
	Target() *kill.Target
	// Dir is the directory of this host that the container sees at IdentityDir.
	Dir() string
	// Assign attaches the mounts, sends the container its identity and thaws it. After
	// an error, sent reports whether the container may have received the identity.
	Assign(ctx context.Context, i holdfast.Identity, mounts []engine.Mount) (sent bool, err error)
}

// dependsOnKey reports whether a text differs between sessions.
func dependsOnKey(text string) bool { return strings.Contains(text, "{key}") }

// WarmSpec returns a container of the template that is created before its session is
// known. name is its name, label the value of LabelWarm. dir is a directory of this
// host, mounted at at, through which the container receives its identity. Settings
// that depend on the key are left out.
func (t Template) WarmSpec(node holdfast.NodeID, name, dir, at, label string) engine.Spec {
	s := t.spec(holdfast.Owner{Node: node})
	s.Name, s.Hostname = name, ""
	s.Labels = map[string]string{LabelNode: string(node), LabelTemplate: t.Name, LabelWarm: label, LabelIdentityDir: dir}
	t.labelStore(s.Labels)
	s.Env = nil
	for name, value := range t.Env {
		if !dependsOnKey(value) {
			s.Env = append(s.Env, name+"="+value)
		}
	}
	slices.Sort(s.Env)
	if t.SaveMemory {
		s.Env = append(s.Env, envWarm+"="+label)
	}
	s.Mounts = nil
	for _, m := range t.Mounts {
		if !dependsOnKey(m.Source) {
			s.Mounts = append(s.Mounts, m)
		}
	}
	s.Mounts = append(s.Mounts, engine.Mount{Type: "bind", Source: dir, Target: at, ReadOnly: true})
	return s
}

// envWarm is set in the environment of a sandbox that waits. The runtime's script looks for it
// (package runsc).
const envWarm = "HOLDFAST_WARM"

// Await returns the address of the server of a warm container once it answers as Ready
// requires. A sandbox that waits does not answer yet: Await returns at once, if the template
// saves memory. alive reports whether the container still runs.
func (t Template) Await(ctx context.Context, c engine.Container, alive func() bool) (string, error) {
	addr, err := address(c, t)
	if err != nil || t.SaveMemory {
		return addr, err
	}
	return addr, awaitReady(ctx, addr, t.Ready, alive)
}

// identity returns the identity of the record's container.
func (t Template) identity(o holdfast.Owner) holdfast.Identity {
	i := holdfast.Identity{Session: o.Key, Epoch: o.Epoch, Env: map[string]string{
		"HOLDFAST_SESSION": string(o.Key), "HOLDFAST_EPOCH": strconv.FormatInt(int64(o.Epoch), 10),
	}}
	for name, value := range t.Env {
		i.Env[name] = strings.ReplaceAll(value, "{key}", string(o.Key))
	}
	return i
}

// claimMounts returns the mounts that a warm container gets when it is claimed.
func (t Template) claimMounts(o holdfast.Owner) []engine.Mount {
	var late []engine.Mount
	for _, m := range t.Mounts {
		if dependsOnKey(m.Source) {
			m.Source = strings.ReplaceAll(m.Source, "{key}", string(o.Key))
			late = append(late, m)
		}
	}
	return late
}

// useWarm makes a warm container serve the session. done is false if there is none, or
// if the one taken could not be used. In the second case it is dead, and the session
// boots.
func (b *attempt) useWarm(ctx context.Context) (done bool, err error) {
	if b.suspended != nil {
		return false, nil // the session is restored from its own memory
	}
	b.m.thaws.Add(1)
	defer b.m.thaws.Add(-1)
	w, ok := b.takeWarm()
	if !ok {
		return false, nil
	}
	sent := false
	err = b.phase("start", func() error {
		ctx, cancel := context.WithTimeout(ctx, b.e.template.Ready.Timeout)
		defer cancel()
		return b.spinup.Time(spinup.Start, func() error {
			b.setHostname()
			sent, err = w.Assign(ctx, b.e.template.identity(b.owner), b.e.template.claimMounts(b.owner))
			if sent && err != nil && b.target.Init().Exited() {
				err = b.exit(ctx)
			}
			return err
		})
	})
	if err != nil && !sent && ctx.Err() == nil {
		b.m.log.Warn("a warm container could not be used; the session boots", "session", b.e.key, "container", short(b.container), "err", err)
		b.spinup = nil
		if err := b.discardContainer(ctx); err != nil {
			return true, &holdfast.BootError{Key: b.e.key, Phase: "start", Err: fmt.Errorf("a warm container that could not be used: %w", err)}
		}
		return false, nil
	}
	if err == nil {
		err = b.recordReady(b.phase("ready", func() error { return b.serve(ctx, b.container, w.Address(), time.Now()) }))
	}
	return true, err
}

// takeWarm takes a container of the template's warm pool for the boot, if there is one.
func (b *attempt) takeWarm() (WarmContainer, bool) {
	w, ok := b.m.deps.Warm.Take(b.e.template.Name)
	if !ok {
		return nil, false
	}
	b.spec = engine.Spec{Name: w.Name(), Image: b.e.template.Image}
	b.container, b.target = w.ID(), w.Target()
	b.m.mu.Lock()
	b.e.network = w.Network()
	b.m.mu.Unlock()
	b.target.Key = b.e.key
	b.beginSpinup(b.spec)
	b.spinup.Container(b.container, b.spec.Name)
	b.spinup.Pulled(spinup.Pull{Image: b.spec.Image, Cached: true, Done: true})
	return w, true
}
