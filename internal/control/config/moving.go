package config

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/sessions/session"
)

// Moving is how sessions' memory is saved, if a template says "handover: memory".
type Moving struct {
	Runsc    string `yaml:"runsc"`     // runsc's path
	Runtime  string `yaml:"runtime"`   // where the agent puts the program that is registered with the engine
	Staged   string `yaml:"staged"`    // images that containers are about to be restored from; default: in run_dir
	MaxImage Bytes  `yaml:"max_image"` // of one image
	Spill    string `yaml:"spill"`     // a directory on disk for outgoing images that do not fit into memory; default: none

	Suspended Suspended `yaml:"suspended"`
}

// Suspended is the storage of suspended sessions' memory, which is encrypted.
type Suspended struct {
	Dir     string        `yaml:"dir"`      // default: suspended in data_dir
	KeyFile string        `yaml:"key_file"` // an age key that only its owner can read; default: images.key in data_dir, which the agent makes
	Keep    time.Duration `yaml:"keep"`     // age at which an image is deleted
	Space   Bytes         `yaml:"space"`    // of all images; the oldest are deleted for new ones
	Shared  bool          `yaml:"shared"`   // dir and key_file are the same on every node
	// Put, Get and Drop are commands that keep the encrypted files elsewhere. They
	// begin with a program's absolute path; "{name}" and "{file}" are replaced.
	Put     []string      `yaml:"put"`
	Get     []string      `yaml:"get"`
	Drop    []string      `yaml:"drop"`
	Timeout time.Duration `yaml:"timeout"` // of one command
}

func defaultMoving() Moving {
	return Moving{
		Runsc: "/usr/local/bin/runsc", Runtime: "/var/lib/holdfast/runsc-holdfast", MaxImage: 4 << 30,
		Suspended: Suspended{Keep: 7 * 24 * time.Hour, Space: 20 << 30, Timeout: 2 * time.Minute},
	}
}

// Remote reports whether commands keep the images.
func (s Suspended) Remote() bool { return len(s.Put)+len(s.Get)+len(s.Drop) > 0 }

func (s Suspended) validate() error {
	for name, p := range map[string]string{"dir": s.Dir, "key_file": s.KeyFile} {
		if p != "" && !path.IsAbs(p) {
			return fmt.Errorf("%s: %q is not an absolute path", name, p)
		}
	}
	if s.Keep < time.Minute || s.Space < 1 || s.Timeout < time.Second {
		return errors.New("keep must be at least 1m, space at least 1 byte, timeout at least 1s")
	}
	if s.Shared && (s.Dir == "" || s.Remote()) {
		return errors.New("shared: it needs a named dir, and no commands")
	}
	if (s.Shared || s.Remote()) && s.KeyFile == "" {
		return holdfast.WithHint(errors.New("key_file is missing: all nodes need the same key"), "make one with `age-keygen -o FILE`, and copy it to every node")
	}
	if !s.Remote() {
		return nil
	}
	for name, args := range map[string][]string{"put": s.Put, "get": s.Get, "drop": s.Drop} {
		switch {
		case len(args) == 0:
			return fmt.Errorf("%s is missing: put, get and drop go together", name)
		case !path.IsAbs(args[0]):
			return fmt.Errorf("%s: %q is not an absolute path of a program; it runs without a shell", name, args[0])
		case !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "{name}") }):
			return fmt.Errorf("%s: {name} is missing", name)
		case name != "drop" && !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "{file}") }):
			return fmt.Errorf("%s: {file} is missing", name)
		}
	}
	return nil
}

// SuspendedDir returns the directory of suspended images, also of the default.
func (c Config) SuspendedDir() string {
	return cmp.Or(c.Moving.Suspended.Dir, filepath.Join(c.DataDir, "suspended"))
}

// ImageKeyFile returns the file with the key that encrypts the images of suspended
// sessions.
func (c Config) ImageKeyFile() string {
	return cmp.Or(c.Moving.Suspended.KeyFile, filepath.Join(c.DataDir, "images.key"))
}

// StagedDir returns the directory of images that containers are about to be restored
// from.
func (c Config) StagedDir() string { return cmp.Or(c.Moving.Staged, filepath.Join(c.RunDir, "images")) }

// SavesMemory reports whether the memory of a template's sessions is saved.
func (c Config) SavesMemory() bool {
	for _, t := range c.Templates {
		if t.Handover == "memory" {
			return true
		}
	}
	return false
}

func (m Moving) validate() error {
	for name, p := range map[string]string{"runsc": m.Runsc, "runtime": m.Runtime} {
		if !path.IsAbs(p) {
			return fmt.Errorf("moving.%s: %q is not an absolute path", name, p)
		}
	}
	if m.Spill != "" && !path.IsAbs(m.Spill) {
		return fmt.Errorf("moving.spill: %q is not an absolute path", m.Spill)
	}
	if m.MaxImage < 1 {
		return errors.New("moving.max_image must be at least 1 byte")
	}
	if err := m.Suspended.validate(); err != nil {
		return fmt.Errorf("moving.suspended: %w", err)
	}
	return nil
}

func (t Template) validateHandover() error {
	switch t.Handover {
	case "fresh":
	case "memory":
		if t.Runtime == "" {
			return holdfast.WithHint(errors.New("handover: memory needs a runtime"), "register moving.runtime with the engine, and name it; docs/moving.md")
		}
		for i, m := range t.Mounts {
			if m.Target == session.IdentityDir || strings.HasPrefix(m.Target, session.IdentityDir+"/") {
				return fmt.Errorf("handover: memory: mounts[%d]: %s is where the container receives its identity", i, session.IdentityDir)
			}
		}
	default:
		return fmt.Errorf("handover: %q is neither fresh nor memory", t.Handover)
	}
	switch {
	case t.Idle != "stop" && t.Idle != "suspend":
		return fmt.Errorf("idle: %q is neither stop nor suspend", t.Idle)
	case t.Idle == "suspend" && t.Handover != "memory":
		return holdfast.WithHint(errors.New("idle: suspend needs handover: memory"), "docs/moving.md")
	}
	return nil
}
