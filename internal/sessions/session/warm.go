package session

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
)

// WarmPool has containers that were made before their sessions. Its methods may be
// called from any goroutine and do not wait.
type WarmPool interface {
	// Ready reports whether Take would find a container of the template.
	Ready(template string) bool
	// Take gives one to a session, for good: it is the caller's to kill and to
	// remove. false where there is none.
	Take(template string) (WarmContainer, bool)
}

// WarmContainer is a container that runs, answers, and is frozen. Its methods are
// for one goroutine.
type WarmContainer interface {
	ID() string
	Name() string
	Address() string // host:port of its server
	// Target is known to the deadman.
	Target() *kill.Target
	// Assign tells it who it is, attaches the mounts and lets it run. told
	// reports, after an error, whether it may have heard.
	Assign(ctx context.Context, i holdfast.Identity, mounts []engine.Mount) (told bool, err error)
}

// dependsOnKey reports whether a text is another for each session.
func dependsOnKey(text string) bool { return strings.Contains(text, "{key}") }

// WarmSpec is a container of the template that is made before its session is known,
// by that name and value of LabelWarm, and with a directory of this host at at, from
// which it hears who it is. What depends on the key is missing.
func (t Template) WarmSpec(node holdfast.NodeID, name, dir, at, label string) engine.Spec {
	s := t.spec(holdfast.Owner{Node: node})
	s.Name, s.Hostname = name, ""
	s.Labels = map[string]string{LabelNode: string(node), LabelTemplate: t.Name, LabelWarm: label, LabelIdentityDir: dir}
	s.Env = nil
	for name, value := range t.Env {
		if !dependsOnKey(value) {
			s.Env = append(s.Env, name+"="+value)
		}
	}
	slices.Sort(s.Env)
	s.Mounts = []engine.Mount{{Type: "bind", Source: dir, Target: at, ReadOnly: true}}
	for _, m := range t.Mounts {
		if !dependsOnKey(m.Source) {
			s.Mounts = append(s.Mounts, m)
		}
	}
	return s
}

// Await returns the address of the server of a container of the template once it
// answers, as Ready asks for. alive is asked whether it can still come to that.
func (t Template) Await(ctx context.Context, c engine.Container, alive func() bool) (string, error) {
	addr, err := address(c, t)
	if err != nil {
		return "", err
	}
	return addr, awaitReady(ctx, addr, t.Ready, alive)
}

// identity is what a warm container is told.
func (t Template) identity(o holdfast.Owner) holdfast.Identity {
	i := holdfast.Identity{Session: o.Key, Epoch: o.Epoch, Env: map[string]string{
		"HOLDFAST_SESSION": string(o.Key), "HOLDFAST_EPOCH": strconv.FormatInt(int64(o.Epoch), 10),
	}}
	for name, value := range t.Env {
		i.Env[name] = strings.ReplaceAll(value, "{key}", string(o.Key))
	}
	return i
}

// claimMounts are those that a warm container gets when it is claimed.
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

// warmWaits reports whether a warm container waits for the session: then the boot
// needs no slot.
func (b *attempt) warmWaits() bool {
	return b.m.deps.Warm != nil && b.m.deps.Warm.Ready(b.e.template.Name)
}

// useWarm has a warm container serve the session. done is false where there is none any
// more, or where the one there was could not be had: then it is dead, and the session
// boots.
func (b *attempt) useWarm(ctx context.Context) (done bool, err error) {
	if b.suspended != nil {
		return false, nil // it has a memory of its own
	}
	b.m.thaws.Add(1)
	defer b.m.thaws.Add(-1)
	w, ok := b.m.deps.Warm.Take(b.e.template.Name)
	if !ok {
		return false, nil
	}
	b.spec = engine.Spec{Name: w.Name(), Image: b.e.template.Image}
	b.container, b.target = w.ID(), w.Target()
	b.target.Key = b.e.key
	b.beginSpinup(b.spec)
	b.spinup.Container(b.container, b.spec.Name)
	b.spinup.Pulled(spinup.Pull{Image: b.spec.Image, Cached: true, Done: true})
	told := false
	err = b.phase("start", func() error {
		ctx, cancel := context.WithTimeout(ctx, b.e.template.Ready.Timeout)
		defer cancel()
		return b.spinup.Time(spinup.Start, func() error {
			b.setHostname()
			told, err = w.Assign(ctx, b.e.template.identity(b.owner), b.e.template.claimMounts(b.owner))
			return err
		})
	})
	if err != nil && !told && ctx.Err() == nil {
		b.m.log.Warn("a warm container could not be used; the session boots", "session", b.e.key, "container", short(b.container), "err", err)
		b.spinup = nil
		if err := b.discardContainer(ctx); err != nil {
			return true, &holdfast.BootError{Key: b.e.key, Phase: "start", Err: fmt.Errorf("a warm container that could not be used: %w", err)}
		}
		return false, nil
	}
	if err == nil {
		err = b.readied(b.phase("ready", func() error { return b.serve(ctx, b.container, w.Address(), time.Now()) }))
	}
	return true, err
}
