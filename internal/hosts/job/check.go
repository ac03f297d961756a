package job

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"holdfast"
)

func (j Job) check() error {
	switch {
	case len(j.Images) == 0:
		return holdfast.WithHint(errors.New("images: the list is empty"), "the first image is where the steps run; docs/jobs.md has an example")
	case len(j.Images) > MaxImages:
		return fmt.Errorf("images: %d given, at most %d allowed", len(j.Images), MaxImages)
	case len(j.Steps) == 0:
		return holdfast.WithHint(errors.New("steps: the list is empty"), "a step is a command for the first image's container")
	case len(j.Steps) > MaxSteps:
		return fmt.Errorf("steps: %d given, at most %d allowed", len(j.Steps), MaxSteps)
	case j.Parallelism < 1 || j.Parallelism > MaxParallelism:
		return fmt.Errorf("parallelism: %d is not between 1 and %d", j.Parallelism, MaxParallelism)
	case !slices.Contains([]Policy{PullMissing, PullAlways, PullNever}, j.Pull):
		return fmt.Errorf("pull: %q is not one of missing, always, never", j.Pull)
	}
	if parts := strings.Split(j.Platform, "/"); j.Platform != "" && (len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "")) {
		return holdfast.WithHint(fmt.Errorf("platform: %q is not os/arch or os/arch/variant", j.Platform), "for example linux/arm64")
	}
	names := map[string]bool{}
	for i, img := range j.Images {
		if err := img.check(i == 0); err != nil {
			return fmt.Errorf("images[%d] (%s): %w", i, img.Image, err)
		}
		if names[img.Name] {
			return holdfast.WithHint(fmt.Errorf("images[%d] (%s): the name %q is used twice", i, img.Image, img.Name),
				"give each a different name: `name:` in a job file, --service NAME=IMAGE on the command line")
		}
		names[img.Name] = true
	}
	for i, s := range j.Steps {
		if (s.Run == "") == (len(s.Command) == 0) {
			return fmt.Errorf("steps[%d]: give either run or command", i)
		}
	}
	return nil
}

func (i Image) check(primary bool) error {
	switch {
	case i.Image == "":
		return errors.New("image is missing")
	case i.WorkDir != "" && !path.IsAbs(i.WorkDir):
		return fmt.Errorf("workdir: %q is not an absolute path", i.WorkDir)
	case primary && i.Ready != nil:
		return errors.New("ready: not allowed for the first image, in which the steps run")
	}
	// The name is a host name and part of the container's name.
	if _, err := holdfast.ParseSessionKey(i.Name); err != nil {
		return holdfast.WithHint(fmt.Errorf("name: %q is not made of a-z, 0-9 and '-'", i.Name), "the other containers reach it by its name: set name")
	}
	for name := range i.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("env: %q is not a valid variable name", name)
		}
		if strings.HasPrefix(name, "HOLDFAST_") {
			return fmt.Errorf("env: %s: names that begin with HOLDFAST_ are reserved", name)
		}
	}
	for k, m := range i.Mounts {
		if err := m.check(); err != nil {
			return fmt.Errorf("mounts[%d]: %w", k, err)
		}
	}
	if i.Ready != nil {
		if err := i.Ready.check(); err != nil {
			return fmt.Errorf("ready: %w", err)
		}
	}
	return nil
}

func (r Ready) check() error {
	switch {
	case (r.Port == 0) == (len(r.Command) == 0):
		return errors.New("give either port or command")
	case r.Port < 0 || r.Port > 65535:
		return fmt.Errorf("port: %d is not between 1 and 65535", r.Port)
	case r.HTTP != "" && (r.Port == 0 || !strings.HasPrefix(r.HTTP, "/")):
		return fmt.Errorf("http: %q must be a path that starts with /, and needs port", r.HTTP)
	case r.Timeout < 0:
		return fmt.Errorf("timeout: %v is negative", r.Timeout)
	}
	return nil
}

func (m Mount) check() error {
	switch {
	case !slices.Contains([]string{"bind", "volume", "tmpfs"}, m.Type):
		return fmt.Errorf("type: %q is not one of bind, volume, tmpfs", m.Type)
	case !path.IsAbs(m.Target):
		return fmt.Errorf("target: %q is not an absolute path", m.Target)
	case m.Type == "bind" && m.Source == "":
		return errors.New("source: required for a bind")
	case m.Type == "tmpfs" && m.Source != "":
		return errors.New("source: not allowed for a tmpfs")
	}
	return nil
}
