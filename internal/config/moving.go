package config

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"

	"holdfast"
)

// Moving is how sessions' memory is saved, where a template says "handover:
// memory".
type Moving struct {
	Runsc    string `yaml:"runsc"`     // runsc's path
	Runtime  string `yaml:"runtime"`   // where the agent puts the program to be registered with the engine
	Staged   string `yaml:"staged"`    // images that containers are about to go on from; default: in run_dir
	MaxImage Bytes  `yaml:"max_image"` // of one
	Spill    string `yaml:"spill"`     // a directory on disk for images that memory has no room for on their way out; default: none
}

func defaultMoving() Moving {
	return Moving{Runsc: "/usr/local/bin/runsc", Runtime: "/var/lib/holdfast/runsc-holdfast", MaxImage: 4 << 30}
}

// StagedDir is the directory of the images that containers are about to go on from.
func (c Config) StagedDir() string { return cmp.Or(c.Moving.Staged, filepath.Join(c.RunDir, "images")) }

// SavesMemory reports whether a template's sessions take their memory along.
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
			return fmt.Errorf("moving.%s: %q is no absolute path", name, p)
		}
	}
	if m.Spill != "" && !path.IsAbs(m.Spill) {
		return fmt.Errorf("moving.spill: %q is no absolute path", m.Spill)
	}
	if m.MaxImage < 1 {
		return errors.New("moving.max_image has to be at least 1 byte")
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
	default:
		return fmt.Errorf("handover: %q is neither fresh nor memory", t.Handover)
	}
	return nil
}
