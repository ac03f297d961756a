package config

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"holdfast"
	"holdfast/internal/engine"
	"holdfast/internal/session"
)

func (c Config) validateTemplates() error {
	if len(c.Templates) == 0 {
		return holdfast.WithHint(errors.New("templates: there is none, so no session could be started"),
			"add one with a name, an image and a port; docs/configuration.md has an example")
	}
	var names []string
	for i, t := range c.Templates {
		if err := t.validate(); err != nil {
			return fmt.Errorf("templates[%d] (%s): %w", i, t.Name, err)
		}
		if slices.Contains(names, t.Name) {
			return fmt.Errorf("templates[%d]: the name %q is used twice", i, t.Name)
		}
		names = append(names, t.Name)
	}
	return nil
}

func (t Template) validate() error {
	switch {
	case t.Name == "":
		return errors.New("name is missing")
	case t.Image == "":
		return errors.New("image is missing")
	case t.Port < 1 || t.Port > 65535:
		return fmt.Errorf("port: %d is not between 1 and 65535", t.Port)
	case t.Memory < 0 || t.CPUs < 0 || t.PIDs < 0:
		return errors.New("memory, cpus and pids have to be 0 (no limit) or more")
	case t.Ready.HTTP != "" && !strings.HasPrefix(t.Ready.HTTP, "/"):
		return fmt.Errorf("ready.http: %q is no path that starts with /", t.Ready.HTTP)
	case t.Ready.Timeout < 0:
		return fmt.Errorf("ready.timeout: %v is below 0", t.Ready.Timeout)
	case t.Network == "none":
		return errors.New("network: a session without a network cannot be reached")
	case t.Network == "host" || strings.HasPrefix(t.Network, "container:"):
		// One key's server would answer for another's on the same port.
		return fmt.Errorf("network: %s would put all sessions on one address", t.Network)
	case !slices.Contains([]string{"fixed", "gain"}, t.Privileges):
		return fmt.Errorf("privileges: %q is neither fixed nor gain", t.Privileges)
	}
	for name := range t.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("env: %q is no name of a variable", name)
		}
		if strings.HasPrefix(name, "HOLDFAST_") {
			return fmt.Errorf("env: %s: names that begin with HOLDFAST_ are the agent's", name)
		}
	}
	for i, m := range t.Mounts {
		if err := m.validate(); err != nil {
			return fmt.Errorf("mounts[%d]: %w", i, err)
		}
	}
	return nil
}

func (m Mount) validate() error {
	switch {
	case !slices.Contains([]string{"bind", "volume", "tmpfs"}, m.Type):
		return fmt.Errorf("type: %q is none of bind, volume, tmpfs", m.Type)
	case !path.IsAbs(m.Target):
		return fmt.Errorf("target: %q is no absolute path", m.Target)
	case m.Type == "bind" && !path.IsAbs(m.Source):
		return fmt.Errorf("source: %q is no absolute path", m.Source)
	case m.Type == "tmpfs" && m.Source != "":
		return errors.New("source: a tmpfs has none")
	}
	return nil
}

// SessionTemplates is the templates as the session package takes them.
func (c Config) SessionTemplates() []session.Template {
	out := make([]session.Template, 0, len(c.Templates))
	for _, t := range c.Templates {
		s := session.Template{
			Name: t.Name, Image: t.Image, Command: t.Command, Env: t.Env,
			Memory: int64(t.Memory), CPUs: t.CPUs, PIDs: t.PIDs,
			Port: t.Port, Network: t.Network,
			Ready:     session.Readiness{HTTPPath: t.Ready.HTTP, Timeout: t.Ready.Timeout},
			NoInit:    t.Init != nil && !*t.Init,
			AllowSUID: t.Privileges == "gain",
		}
		for _, m := range t.Mounts {
			s.Mounts = append(s.Mounts, engine.Mount{Type: m.Type, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
		}
		out = append(out, s)
	}
	return out
}
