package drill

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/flock"
)

// DefaultRegistry is the directory in which stages are registered: a symbolic link from
// each stage's name to its directory. With it, the next drill finds what a killed one
// left in any directory.
const DefaultRegistry = "/run/holdfast/drills"

// register registers the stage. The stage is already locked, so no other drill takes it
// for the stage of a dead process.
func (s *stage) register(registry string) error {
	if err := os.MkdirAll(registry, 0o700); err != nil {
		return err
	}
	return os.Symlink(s.dir, s.link(registry))
}

func (s *stage) link(registry string) string { return filepath.Join(registry, s.name) }

// unregister removes the registration of a stage that has been removed.
func (s *stage) unregister(registry string) error {
	if err := os.Remove(s.link(registry)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// registered returns the directories of the registered stages.
func registered(registry string) ([]string, error) {
	entries, err := os.ReadDir(registry)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		dir, err := os.Readlink(filepath.Join(registry, e.Name()))
		// Groups and containers are removed by this name, so it must have a drill's form.
		if err == nil && strings.HasPrefix(e.Name(), prefix) && filepath.Base(dir) == e.Name() && filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// sweepStage removes the stage of a directory if its drill is dead.
func sweepStage(dir string, o Options) error {
	name := filepath.Base(dir)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return flock.Dead(filepath.Dir(dir), name, func(d *flock.Dir) error { return stageIn(d).remove(o) })
	}
	// The files have been removed, and with them the lock. The drill is alive if its
	// groups have processes.
	if alive, err := inhabited(o.Groups, name); err != nil || alive {
		return err
	}
	return (&stage{dir: dir, name: name}).remove(o)
}

// inhabited reports whether a stage's groups have processes.
func inhabited(ms cgroup.Mounts, name string) (bool, error) {
	groups, err := ms.Search(func(n string) bool { return n == name })
	if err != nil {
		return false, fmt.Errorf("search for control groups of %s: %w", name, err)
	}
	for _, g := range groups {
		if empty, err := g.Empty(); err != nil || !empty {
			return true, err
		}
	}
	return false, nil
}
