// Package session is the ownership state machine of one node: it claims a
// session, boots its container, says when it is ready, keeps it while somebody
// is connected, stops it, and after a restart of the agent finds it again.
package session

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// Labels that every container of a session carries. They are how an agent
// finds its containers again after a restart, so they never change.
const (
	LabelNode        = "holdfast.node"
	LabelSession     = "holdfast.session"
	LabelEpoch       = "holdfast.epoch"
	LabelTemplate    = "holdfast.template"
	LabelStep        = "holdfast.step"         // its name, on the container of an init step only
	LabelWarm        = "holdfast.warm"         // on one that was there before its session, which it does not name
	LabelIdentityDir = "holdfast.identity-dir" // likewise: the directory of this host with what it was told
)

// Template is how the container of a session is made. "{key}" in mount sources,
// environment values and command arguments becomes the session's key.
type Template struct {
	Name      string
	Image     string
	Command   []string // empty: the image's own
	Env       map[string]string
	Mounts    []engine.Mount
	Memory    int64   // bytes, 0 is no limit
	CPUs      float64 // 0 is no limit
	PIDs      int64   // 0 is no limit
	Port      int     // that the session's server listens on
	Ready     Readiness
	Network   string // "" is the engine's default bridge
	Pooled    bool   // join a ready network where there is one; Network is then ""
	NoInit    bool   // the image's process is pid 1 itself, without the engine's minimal init
	AllowSUID bool   // processes may gain privileges through set-uid programs
	Seccomp   string // path of a seccomp profile on this host; "" is the engine's default
	Steps     []Step // run one after the other before the session's own container
	Snapshot  Snapshot
	// SaveMemory has a container that leaves with notice saved, for the
	// session's next life. The runtime has to be one that can.
	SaveMemory bool
	// SuspendIdle has an idle session suspended instead of stopped.
	SuspendIdle bool
	Priority    int                   // of its memory: where not all can be saved, what is lost is what has less
	Runtime     string                // of its containers; "" is the engine's default
	Keep        *holdfast.KeepSockets // nil: WebSockets are closed when the session leaves
}

// Snapshot is a command on this host that runs when a session has ended, after
// its container was seen dead and before anybody else can have the session.
type Snapshot struct {
	// Command begins with a program's absolute path; no shell sees it.
	// "{key}" and "{epoch}" are filled in. Empty: none.
	Command []string
	Timeout time.Duration // over 0
}

// Step is an init step: a container that runs to completion before the
// session's own is made, with the same mounts, limits and network. "{key}" is
// filled in as in a template.
type Step struct {
	Name    string // a word of the characters of a key; differs among a template's steps
	Image   string // "" is the template's
	Command []string
	Env     map[string]string
	Timeout time.Duration // over 0
}

// Readiness says when a started container counts as ready.
type Readiness struct {
	// HTTPPath is asked for with GET until it answers with a status below
	// 400. Empty: a TCP connect to the port is enough.
	HTTPPath string
	// Timeout is from the engine's "started" until ready; over 0.
	Timeout time.Duration
}

// images are those that a session of the template needs.
func (t Template) images() []string {
	images := []string{t.Image}
	for _, step := range t.Steps {
		if step.Image != "" && !slices.Contains(images, step.Image) {
			images = append(images, step.Image)
		}
	}
	return images
}

// specs are the containers of one claim, in their order: those of the steps, and
// the session's own.
func (t Template) specs(o holdfast.Owner) []engine.Spec {
	var out []engine.Spec
	for _, step := range t.Steps {
		out = append(out, t.stepSpec(o, step))
	}
	return append(out, t.spec(o))
}

// stepSpec is the container of an init step.
func (t Template) stepSpec(o holdfast.Owner, step Step) engine.Spec {
	if step.Image != "" {
		t.Image = step.Image
	}
	t.Command, t.Env = step.Command, step.Env
	s := t.spec(o)
	s.Name += "." + step.Name // no key has a dot: no other session's container is called like that
	s.Labels[LabelStep] = step.Name
	return s
}

// spec is the container of one claim of a session.
func (t Template) spec(o holdfast.Owner) engine.Spec {
	fill := func(s string) string { return strings.ReplaceAll(s, "{key}", string(o.Key)) }
	s := engine.Spec{
		// With the epoch in it the name is free even while the engine
		// still tidies up this key's last container.
		Name:     fmt.Sprintf("holdfast-%s-%d", o.Key, o.Epoch),
		Image:    t.Image,
		Hostname: string(o.Key),
		Labels: map[string]string{
			LabelNode:     string(o.Node),
			LabelSession:  string(o.Key),
			LabelEpoch:    strconv.FormatInt(int64(o.Epoch), 10),
			LabelTemplate: t.Name,
		},
		Network: t.Network,
		// A container of ours that comes back by itself would be a
		// second one for its key (moby#11065).
		Restart:         engine.RestartNo,
		Memory:          t.Memory,
		CPUs:            t.CPUs,
		PIDs:            t.PIDs,
		Init:            !t.NoInit,
		NoNewPrivileges: !t.AllowSUID,
		Seccomp:         t.Seccomp,
		Runtime:         t.Runtime,
	}
	for _, arg := range t.Command {
		s.Command = append(s.Command, fill(arg))
	}
	for name, value := range t.Env {
		s.Env = append(s.Env, name+"="+fill(value))
	}
	slices.Sort(s.Env)
	s.Env = append(s.Env,
		"HOLDFAST_SESSION="+string(o.Key),
		"HOLDFAST_EPOCH="+strconv.FormatInt(int64(o.Epoch), 10))
	for _, m := range t.Mounts {
		m.Source = fill(m.Source)
		s.Mounts = append(s.Mounts, m)
	}
	if strings.HasPrefix(t.Network, "container:") || t.Network == "host" {
		s.Hostname = "" // it has the other's
	}
	return s
}

// epochOf is the epoch that a container was made for, 0 where its label is
// missing or no number.
func epochOf(c engine.Container) holdfast.Epoch {
	n, err := strconv.ParseInt(c.Labels[LabelEpoch], 10, 64)
	if err != nil {
		return 0
	}
	return holdfast.Epoch(n)
}
