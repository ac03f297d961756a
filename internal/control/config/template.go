package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/pool/container"
	"holdfast/internal/sessions/session"
)

// runtimeName matches the names of runtimes in engines: a word, or a shim's name with
// dots.
var runtimeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`) })

func (c Config) validateTemplates() error {
	if err := c.Moving.validate(); err != nil {
		return err
	}
	if len(c.Templates) == 0 {
		return holdfast.WithHint(errors.New("templates: the list is empty, so no session could be started"),
			"add one with a name, an image and a port; docs/configuration.md has an example")
	}
	var names []string
	for i, t := range c.Templates {
		if err := cmp.Or(t.validate(), c.validateRuntime(t), c.validateTCP(t)); err != nil {
			return fmt.Errorf("templates[%d] (%s): %w", i, t.Name, err)
		}
		names = append(names, t.Name)
	}
	return cmp.Or(distinct("templates", names), c.validateGroups(), c.validateSleeps())
}

// validateRuntime refuses handover: memory with a runtime that cannot restore memory:
// with containerd the configuration says which program runs a template's containers.
func (c Config) validateRuntime(t Template) error {
	if t.Handover != "memory" || c.Engine.Name != Containerd || c.Engine.Runtimes[t.Runtime] == c.Moving.Runtime {
		return nil
	}
	return holdfast.WithHint(fmt.Errorf("handover: memory: with containerd its runtime %s must be moving.runtime", t.Runtime),
		fmt.Sprintf("engine: {runtimes: {%s: %s}}; docs/moving.md", t.Runtime, c.Moving.Runtime))
}

func (t Template) validate() error {
	switch {
	case t.Name == "":
		return errors.New("name is missing")
	case t.Image == "":
		return errors.New("image is missing")
	case t.Port < 1 || t.Port > 65535:
		return fmt.Errorf("port: %d is not between 1 and 65535", t.Port)
	case t.Ports.Check(1) != nil:
		return fmt.Errorf("ports: %w", t.Ports.Check(1))
	case t.Memory < 0 || t.CPUs < 0 || t.PIDs < 0:
		return errors.New("memory, cpus and pids must be 0 (no limit) or more")
	case t.Ready.HTTP != "" && !strings.HasPrefix(t.Ready.HTTP, "/"):
		return fmt.Errorf("ready.http: %q is not a path that begins with /", t.Ready.HTTP)
	case t.Ready.Timeout < 0:
		return fmt.Errorf("ready.timeout: %v is below 0", t.Ready.Timeout)
	case t.Network == "none":
		return errors.New("network: a session without a network cannot be reached")
	case t.Network == "host" || strings.HasPrefix(t.Network, "container:"):
		// The server of one key would answer for other keys on the same port.
		return fmt.Errorf("network: %s would put all sessions on one address", t.Network)
	case t.Runtime != "" && !runtimeName().MatchString(t.Runtime):
		return fmt.Errorf("runtime: %q is not a name of a runtime such as runsc", t.Runtime)
	case t.Snapshot.Timeout < 0:
		return fmt.Errorf("snapshot.timeout: %v is below 0", t.Snapshot.Timeout)
	}
	for i, m := range t.Mounts {
		if err := m.validate(); err != nil {
			return fmt.Errorf("mounts[%d]: %w", i, err)
		}
	}
	return cmp.Or(absoluteOrNone("seccomp", t.Seccomp), oneOf("privileges", t.Privileges, "fixed", "gain"),
		t.validateWarm(), validateEnv(t.Env), t.validateSteps(), t.validateHandover(), t.validateSockets(), t.validateUpgrades(), t.validateReplicas(), t.validateSleep(), program("snapshot.command", t.Snapshot.Command))
}

func validateEnv(env map[string]string) error {
	for name := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("env: %q is not a name of a variable", name)
		}
		if strings.HasPrefix(name, "HOLDFAST_") {
			return fmt.Errorf("env: %s: names that begin with HOLDFAST_ are reserved for the agent", name)
		}
	}
	return nil
}

// maxSteps is how many init steps a template may have.
const maxSteps = 16

func (t Template) validateSteps() error {
	if len(t.InitSteps) > maxSteps {
		return fmt.Errorf("init_steps: there are %d, at most %d are allowed", len(t.InitSteps), maxSteps)
	}
	var names []string
	for i, s := range t.InitSteps {
		if err := s.validate(); err != nil {
			return fmt.Errorf("init_steps[%d] (%s): %w", i, s.Name, err)
		}
		names = append(names, s.Name)
	}
	return distinct("init_steps", names)
}

func (s InitStep) validate() error {
	// The name is part of the container's name.
	if _, err := holdfast.ParseSessionKey(s.Name); err != nil {
		return fmt.Errorf("name: %q is not made of a-z, 0-9 and '-'", s.Name)
	}
	if s.Image == "" && len(s.Command) == 0 {
		return errors.New("command is missing: the template's own command is a server, which does not end")
	}
	if s.Timeout < 0 {
		return fmt.Errorf("timeout: %v is below 0", s.Timeout)
	}
	return validateEnv(s.Env)
}

func (m Mount) validate() error {
	err := cmp.Or(oneOf("type", m.Type, "bind", "volume", "tmpfs"), absolute("target", m.Target))
	switch {
	case err != nil:
		return err
	case m.Type == "bind":
		return absolute("source", m.Source)
	case m.Type == "tmpfs" && m.Source != "":
		return errors.New("source: a tmpfs has no source")
	}
	return nil
}

// validateWarm checks that a container of the template can start before its session is
// known, if the template has warm containers.
func (t Template) validateWarm() error {
	keyed := func(text string) bool { return strings.Contains(text, "{key}") }
	switch {
	case t.Warm < 0 || t.Warm > container.MaxSize:
		return fmt.Errorf("warm: %d is not between 0 and %d", t.Warm, container.MaxSize)
	case t.Warm == 0:
		return nil
	case slices.ContainsFunc(t.Command, keyed):
		return errors.New("warm: the command contains {key}, and would run before the key is known; docs/pools.md says how a program receives its key")
	case len(t.InitSteps) > 0:
		return errors.New("warm: init_steps run before the container, and a warm container already runs")
	case t.Runtime != "" && t.Handover != "memory":
		return errors.New("warm: a container of another runtime may be unreachable from the host while it runs, as with gVisor; remove warm or runtime, or set handover: memory")
	}
	for i, m := range t.Mounts {
		if t.Handover == "memory" && keyed(m.Source) {
			return fmt.Errorf("warm: mounts[%d]: a sandbox that waits for a session's memory has its mounts before the key is known", i)
		}
		if m.Type == "volume" && keyed(m.Source) {
			return fmt.Errorf("warm: mounts[%d]: a volume cannot be attached to a running container; a bind can", i)
		}
	}
	return within("warm: ", t.keepFree(container.Dir))
}

// networkPooled is the network of a session on Holdfast's bridge (docs/pools.md).
const networkPooled = "pooled"

// pooled reports whether a session gets a network of Holdfast's, if there is one. A runtime
// of its own, such as gVisor's, takes over the network, but not the session's host name. The
// program at moving.runtime sets that. Other templates with a runtime have to ask for it.
func (t Template) pooled() bool {
	return t.Network == networkPooled || t.Network == "" && (t.Runtime == "" || t.Handover == "memory")
}

// Joins reports whether sessions of a template get a network of Holdfast's beside the
// engine's: with containerd all networks are Holdfast's.
func (c Config) Joins() bool {
	return c.Engine.Name != Containerd && slices.ContainsFunc(c.Templates, Template.pooled)
}

// allowedPorts returns the ports that any template allows, its own included. It is empty
// if no template lists ports.
func (c Config) allowedPorts() (all holdfast.Ports) {
	var own []int
	for _, t := range c.Templates {
		all.All = all.All || t.Ports.All
		all.List = append(all.List, t.Ports.List...)
		own = append(own, t.Port)
	}
	switch {
	case all.All:
		all.List = nil
	case !all.None():
		all.List = append(all.List, own...)
	}
	return all
}

// SessionTemplates returns the templates in the type of the session package.
func (c Config) SessionTemplates() []session.Template {
	out := make([]session.Template, 0, len(c.Templates))
	for _, t := range c.Templates {
		s := session.Template{
			Name: t.Name, Image: t.Image, Command: t.Command, Env: t.Env,
			Memory: int64(t.Memory), CPUs: t.CPUs, PIDs: t.PIDs,
			Port: t.Port, Ports: t.Ports, Network: t.Network, Pooled: t.pooled(),
			Ready:      session.Readiness{HTTPPath: t.Ready.HTTP, Timeout: t.Ready.Timeout},
			NoInit:     t.Init != nil && !*t.Init,
			AllowSUID:  t.Privileges == "gain",
			Seccomp:    t.Seccomp,
			Runtime:    t.Runtime,
			SaveMemory: t.Handover == "memory",
			Fork:       t.Fork == "allowed",
			Renew:      session.Renew(t.Renew),
			Priority:   t.Priority,
			Snapshot:   session.Snapshot(t.Snapshot),

			SuspendIdle: t.Idle == "suspend",
			Sleep:       session.Sleep{After: t.Sleep.After, ByData: t.Sleep.IdleBy == "data"},
			Wake:        t.Sleep.wakes(),
			Keep:        t.keepSockets(),
			Upgrades:    t.Upgrades,
			Replicas:    t.Replicas,
		}
		if t.Network == networkPooled {
			s.Network = "" // if no network is ready, it is the engine's own
		}
		for _, step := range t.InitSteps {
			s.Steps = append(s.Steps, session.Step(step))
		}
		for _, m := range t.Mounts {
			s.Mounts = append(s.Mounts, engine.Mount(m))
		}
		out = append(out, s)
	}
	return out
}
