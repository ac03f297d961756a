package config

import (
	"cmp"
	"errors"
	"fmt"
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
	if err := cmp.Or(absoluteOrNone("dir", s.Dir), absoluteOrNone("key_file", s.KeyFile)); err != nil {
		return err
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
	return cmp.Or(imageCommand("put", s.Put, "{name}", "{file}"), imageCommand("get", s.Get, "{name}", "{file}"), imageCommand("drop", s.Drop, "{name}"))
}

// imageCommand checks a command and the texts that must be in it.
func imageCommand(key string, args []string, texts ...string) error {
	if len(args) == 0 {
		return fmt.Errorf("%s is missing: put, get and drop go together", key)
	}
	for _, text := range texts {
		if !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, text) }) {
			return fmt.Errorf("%s: %s is missing", key, text)
		}
	}
	return program(key, args)
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
	return slices.ContainsFunc(c.Templates, func(t Template) bool { return t.Handover == "memory" })
}

func (m Moving) validate() error {
	if m.MaxImage < 1 {
		return errors.New("moving.max_image must be at least 1 byte")
	}
	return cmp.Or(absolute("moving.runsc", m.Runsc), absolute("moving.runtime", m.Runtime), absoluteOrNone("moving.spill", m.Spill),
		within("moving.suspended: ", m.Suspended.validate()))
}

func (t Template) validateHandover() error {
	if err := cmp.Or(oneOf("handover", t.Handover, "fresh", "memory"), oneOf("idle", t.Idle, "stop", "suspend"), oneOf("fork", t.Fork, "refused", "allowed")); err != nil {
		return err
	}
	switch {
	case t.Fork == "allowed" && t.Handover != "memory":
		return holdfast.WithHint(errors.New("fork: allowed needs handover: memory"), "docs/forking.md")
	case t.Renew.Timeout < time.Second:
		return errors.New("renew.timeout must be at least 1s")
	case t.Handover == "memory" && t.Runtime == "":
		return holdfast.WithHint(errors.New("handover: memory needs a runtime"), "register moving.runtime with the engine, and name it; docs/moving.md")
	case t.Idle == "suspend" && t.Handover != "memory":
		return holdfast.WithHint(errors.New("idle: suspend needs handover: memory"), "docs/moving.md")
	case t.Runtime != "":
		return within("runtime: ", t.keepFree(session.IdentityDir))
	}
	return nil
}

// keepFree refuses a mount at or below the directory in which the container receives
// its identity.
func (t Template) keepFree(dir string) error {
	for i, m := range t.Mounts {
		if m.Target == dir || strings.HasPrefix(m.Target, dir+"/") {
			return fmt.Errorf("mounts[%d]: %s is where the container receives its identity", i, dir)
		}
	}
	return nil
}
