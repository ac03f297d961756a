package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/kfile"
)

const (
	// maxTree bounds the names of the groups in a container's tree: their bytes, and 64 for
	// each group. It is enough for about 450,000 groups.
	maxTree = 32 << 20
	perName = 64
)

// errTree means that a tree of control groups is too large.
var errTree = errors.New("the tree of control groups is too large")

// each calls visit with a directory for the group and for each group below it, parents
// before their children. A container may make paths longer than PATH_MAX, so the directory
// is given as a link in /proc/self/fd, which is valid during the call. each keeps one
// descriptor, and the names that are still to be visited. It leaves out the groups below
// one that is gone. fs.SkipAll ends it without an error.
func (g Group) each(visit func(dir string) error) error {
	dir, err := openDir(unix.AT_FDCWD, g.Dir())
	if err != nil {
		return ignoreGone(err)
	}
	defer func() { unix.Close(dir) }()
	left := maxTree
	var names [][]string // to be visited, by level
	for {
		at := "/proc/self/fd/" + strconv.Itoa(dir)
		var below []string
		if err = visit(at); err == nil {
			below, err = namesBelow(at, &left)
		}
		switch err = ignoreGone(err); {
		case errors.Is(err, fs.SkipAll):
			return nil
		case err != nil:
			return fmt.Errorf("%s and below: %w", g.Dir(), err)
		}
		if dir, names, err = next(dir, append(names, below)); err != nil || len(names) == 0 {
			return err
		}
	}
}

// next opens the next directory to be visited, and closes dir. names is empty if there is
// none. After an error dir is still open.
func next(dir int, names [][]string) (int, [][]string, error) {
	for level := len(names) - 1; level >= 0; {
		way := ".."
		if n := len(names[level]); n > 0 {
			way = names[level][n-1]
			names[level] = names[level][:n-1]
		} else if names, level = names[:level], level-1; level < 0 {
			break
		}
		at, err := openDir(dir, way)
		switch {
		case err == nil:
			unix.Close(dir)
			dir = at
		case way == ".." || ignoreGone(err) != nil:
			return dir, nil, fmt.Errorf("open a control group: %w", err)
		}
		if err == nil && way != ".." {
			break
		}
	}
	return dir, names, nil
}

func openDir(at int, path string) (dir int, err error) {
	for {
		dir, err = unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return dir, err
		}
	}
}

// namesBelow returns the names of the directories in dir, and subtracts their cost from
// left.
func namesBelow(dir string, left *int) (names []string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Nlink == 2 { // a directory has a link from each child directory
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for *left >= 0 {
		entries, err := f.ReadDir(namesAtOnce)
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
				*left -= len(e.Name()) + perName
			}
		}
		if errors.Is(err, io.EOF) {
			return names, nil
		} else if err != nil {
			return nil, err
		}
	}
	return nil, errTree
}

// procsIn reads the pids in the group of a directory.
func procsIn(dir string) ([]int, error) {
	b, err := kfile.Read(dir+"/cgroup.procs", maxProcs)
	if errors.Is(err, unix.EOPNOTSUPP) { // a threaded v2 group: its processes are listed above it
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return ParseProcs(b)
}
