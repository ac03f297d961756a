package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
)

// mount is one line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	root   string // the directory of the file system that is mounted
	point  string
	fsType string
	source string
}

// readMounts returns this namespace's mounts in the order they were made.
func readMounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var mounts []mount
	lines := bufio.NewScanner(f)
	// An overlay of many layers has a long line.
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m, err := parseMount(lines.Text())
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, m)
	}
	return mounts, lines.Err()
}

func parseMount(line string) (mount, error) {
	left, right, ok := strings.Cut(line, " - ")
	fields, tail := strings.Fields(left), strings.Fields(right)
	if !ok || len(fields) < 6 || len(tail) < 2 {
		return mount{}, fmt.Errorf("read mountinfo: unexpected line %q", line)
	}
	return mount{
		root:   proc.Unescape(fields[3]),
		point:  proc.Unescape(fields[4]),
		fsType: tail[0],
		source: proc.Unescape(tail[1]),
	}, nil
}

// detachBelow detaches every mount below dir, the last made first.
func detachBelow(dir string) error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		point := mounts[i].point
		if !strings.HasPrefix(point, dir+"/") {
			continue
		}
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("detach %s: %w", point, err)
		}
	}
	return nil
}

// canOverlay tests whether dir can hold the upper directory of an overlay. Overlays and
// most network file systems cannot. File systems in memory can, but hold an engine's data
// only on request.
func canOverlay(dir string, inMemory bool) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	if fs.Type == unix.TMPFS_MAGIC && !inMemory {
		return errors.New("it is in memory (tmpfs)")
	}
	trial, err := os.MkdirTemp(dir, "overlay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(trial)
	sub := func(name string) string { return filepath.Join(trial, name) }
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(sub(name), 0o700); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", sub("lower"), sub("upper"), sub("work"))
	if err := unix.Mount("overlay", sub("merged"), "overlay", 0, options); err != nil {
		return fmt.Errorf("it holds no overlay: %w", err)
	}
	return unix.Unmount(sub("merged"), 0)
}
