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

// Labels of every session container. A restarted agent finds its containers by them,
// so they never change.
const (
	LabelNode        = "holdfast.node"
	LabelSession     = "holdfast.session"
	LabelEpoch       = "holdfast.epoch"
	LabelTemplate    = "holdfast.template"
	LabelStore       = "holdfast.store"        // StoreID of the container's record; missing from earlier versions
	LabelStep        = "holdfast.step"         // name of the step, on the container of an init step only
	LabelWarm        = "holdfast.warm"         // on a container that was warm; it does not name the session
	LabelIdentityDir = "holdfast.identity-dir" // on a container that was warm: the directory of this host with its identity
)

// Template describes how the container of a session is created. "{key}" in mount
// sources, environment values and command arguments becomes the session's key.
type Template struct {
	Name      string
	Store     string // StoreID of the containers' records, a label of theirs; "" is no label
	Image     string
	Command   []string // empty: the image's command
	Env       map[string]string
	Mounts    []engine.Mount
	Memory    int64   // bytes, 0 means no limit
	CPUs      float64 // 0 means no limit
	PIDs      int64   // 0 means no limit
	Port      int     // that the session's server listens on
	Ready     Readiness
	Network   string // "" is the engine's default bridge
	Pooled    bool   // join a network of the agent's if there is one; Network is then ""
	NoInit    bool   // the image's process is pid 1 itself, without the engine's minimal init
	AllowSUID bool   // processes may gain privileges through set-uid programs
	Seccomp   string // path of a seccomp profile on this host; "" is the engine's default
	Steps     []Step // run one after the other before the session's own container starts
	Snapshot  Snapshot
	// SaveMemory saves a container that leaves as planned, for the session's next
	// epoch. The runtime has to support it.
	SaveMemory bool
	// Fork lets other sessions start from the memory of a session of the template. SaveMemory
	// is then true.
	Fork  bool
	Renew Renew
	// SuspendIdle suspends an idle session instead of stopping it.
	SuspendIdle bool
	Sleep       Sleep
	Wake        []Schedule            // the session wakes at the times of each
	Priority    int                   // of its memory: if not all can be saved, the lowest priority is lost
	Runtime     string                // of its containers; "" is the engine's default
	Ports       holdfast.Ports        // that clients may reach beside Port
	Upgrades    []string              // protocols, beside WebSocket, to which clients may upgrade
	Keep        *holdfast.KeepSockets // nil: WebSockets are closed when the session leaves
	// Replicas is over 0 for a group: sessions of the template have only keys of its
	// replicas, other sessions have none of them, and none is stopped for idleness.
	Replicas int
}

// Snapshot is a command on this host that runs after a session's container was seen
// dead and before another claim of the session is possible.
type Snapshot struct {
	// Command starts with the absolute path of a program; there is no shell. "{key}"
	// and "{epoch}" are replaced. Empty means no snapshot.
	Command []string
	Timeout time.Duration // over 0
}

// Renew is a command in the container of a session that has started from the memory of another
// one, before it is ready.
type Renew struct {
	Command []string // empty: none
	Timeout time.Duration
}

// Step is an init step: a container that runs to completion before the session's own
// container is created, with the same mounts, limits and network. "{key}" is replaced
// as in a template.
type Step struct {
	Name    string // characters of a key; unique among a template's steps
	Image   string // "" is the template's
	Command []string
	Env     map[string]string
	Timeout time.Duration // over 0
	// RestoresDisk counts the step's time as Phases.Disk.
	RestoresDisk bool
}

// Readiness describes when a started container is ready.
type Readiness struct {
	// HTTPPath is requested with GET until the status is below 400. Empty means that a
	// TCP connection to the port suffices.
	HTTPPath string
	// Timeout is the time from the engine's "started" until ready. It is over 0.
	Timeout time.Duration
}

// ports returns the ports that clients may reach beside the template's own. A container
// in the network of the host or of another container has only its own.
func (t Template) ports() holdfast.Ports {
	if t.Network == "host" || strings.HasPrefix(t.Network, "container:") {
		return holdfast.Ports{}
	}
	return t.Ports
}

// images returns the images that a session of the template needs.
func (t Template) images() []string {
	images := []string{t.Image}
	for _, step := range t.Steps {
		if step.Image != "" && !slices.Contains(images, step.Image) {
			images = append(images, step.Image)
		}
	}
	return images
}

// specs returns the containers of one claim in their order: those of the init steps
// and the session's own.
func (t Template) specs(o holdfast.Owner) []engine.Spec {
	var out []engine.Spec
	for _, step := range t.Steps {
		out = append(out, t.stepSpec(o, step))
	}
	return append(out, t.spec(o))
}

// stepSpec returns the container of an init step.
func (t Template) stepSpec(o holdfast.Owner, step Step) engine.Spec {
	if step.Image != "" {
		t.Image = step.Image
	}
	t.Command, t.Env = step.Command, step.Env
	s := t.spec(o)
	s.Name += "." + step.Name // no key contains a dot, so no other session's container has this name
	s.Labels[LabelStep] = step.Name
	return s
}

// spec returns the session's own container for one claim.
func (t Template) spec(o holdfast.Owner) engine.Spec {
	fill := func(s string) string { return strings.ReplaceAll(s, "{key}", string(o.Key)) }
	s := engine.Spec{
		// The epoch makes the name free even while the engine still removes this key's
		// last container.
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
		// A container that restarts by itself would be a second one for its key
		// (moby#11065).
		Restart:         engine.RestartNo,
		Memory:          t.Memory,
		CPUs:            t.CPUs,
		PIDs:            t.PIDs,
		Init:            !t.NoInit,
		NoNewPrivileges: !t.AllowSUID,
		Seccomp:         t.Seccomp,
		Runtime:         t.Runtime,
	}
	t.labelStore(s.Labels)
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
		s.Hostname = "" // it has the host name of the network's owner
	}
	return s
}

// epochOf returns the epoch that a container was created for. It is 0 if the label is
// missing or not a number.
func epochOf(c engine.Container) holdfast.Epoch {
	n, err := strconv.ParseInt(c.Labels[LabelEpoch], 10, 64)
	if err != nil {
		return 0
	}
	return holdfast.Epoch(n)
}
