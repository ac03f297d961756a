package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupDirs returns the directories of the top-level cgroup name, one for each
// mounted hierarchy that has it: several on v1 (cgroups(7)), one on v2.
func cgroupDirs(name string) ([]string, error) {
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, m := range mounts {
		if m.fsType != "cgroup" && m.fsType != "cgroup2" {
			continue
		}
		dir := filepath.Join(m.point, name)
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// removeCgroup kills every process in the cgroup name and those below it and
// removes them from every hierarchy.
func removeCgroup(name string) error {
	dirs, err := cgroupDirs(name)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		// All are killed before one is removed: a process that the freezer's hierarchy has frozen
		// leaves none.
		for _, dir := range dirs {
			killCgroup(dir)
		}
		err := removeTrees(dirs)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		// Killed processes leave the cgroup when the kernel has ended them.
		time.Sleep(5 * time.Millisecond)
	}
}

// removeTrees removes cgroups and those below them, up to the first that cannot be removed.
func removeTrees(dirs []string) error {
	for _, dir := range dirs {
		if err := removeTree(dir); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// killCgroup sends SIGKILL to all processes in dir and below. It thaws frozen cgroups,
// because on v1 frozen processes do not die.
func killCgroup(dir string) {
	walkDirs(dir, func(sub string) {
		_ = os.WriteFile(filepath.Join(sub, "freezer.state"), []byte("THAWED"), 0)
		procs, err := os.ReadFile(filepath.Join(sub, "cgroup.procs"))
		if err != nil {
			return
		}
		for _, field := range strings.Fields(string(procs)) {
			// 0 stands for a process of another pid namespace.
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
}

// removeTree removes a cgroup and those below it, the deepest first.
func removeTree(dir string) error {
	var dirs []string
	walkDirs(dir, func(sub string) { dirs = append(dirs, sub) })
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// walkDirs calls visit for dir and the directories below it, parents first. It skips
// directories that vanish.
func walkDirs(dir string, visit func(string)) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir
		}
		if d.IsDir() {
			visit(path)
		}
		return nil
	})
}
