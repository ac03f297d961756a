package gc

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"holdfast/internal/platform/engine"
)

// files knows where an engine on this host keeps the files of its layers. It changes none.
type files interface {
	// root is a directory on the file system of the files.
	root() string
	// size returns the size of a layer in bytes, if the engine has recorded it.
	size(chain string) (int64, bool)
	// image returns the directories with the files of an image's layers, given as the
	// topmost layers of the image, lowest first.
	image(ctx context.Context, chains []string) ([]string, error)
	// container returns the directories with the files that a container wrote.
	container(ctx context.Context, id string) ([]string, error)
}

// openFiles finds the layers of an engine at the site, of which local, disk and hidden are set. If
// it finds none, why gives the cause. For containerd why is "": its removals only remove a name
// and free the files beside spin-ups, so linking has no use.
func (c *Collector) openFiles(info engine.Info, at site) (f files, why string, err error) {
	switch {
	case info.ImageStore == engine.ClientStore:
		return nil, "", nil
	case info.Socket == "":
		return nil, "the engine may be on another host", nil
	case at.local == "":
		return nil, "the engine's data cannot be read at " + info.DataRoot, nil
	case info.ImageStore == engine.ContainerdStore && info.StorageDriver == "overlayfs":
		return openSnapshots(c.d.Engine, at)
	case info.ImageStore != engine.GraphDriver || info.StorageDriver != "overlay2":
		return nil, "the storage is " + info.StorageDriver + ", not overlay2 or overlayfs", nil
	}
	o, why := openOverlay(info)
	if o == nil {
		return nil, why, nil
	}
	return o, "", nil
}

// snapshots are the layers of an engine with the containerd image store. Its containerd
// tells their directories (containerd, plugins/snapshots/overlay upperPath).
type snapshots struct {
	engine Engine
	dir    string // of the snapshotter
}

// snapshotRoot asks the engine's containerd for the directory of its snapshotter. Its error is why
// that is not visible; dir is then "".
func (c *Collector) snapshotRoot(ctx context.Context) (dir string, err error) {
	dir, err = c.d.Engine.SnapshotRoot(ctx)
	if err == nil && dir == "" {
		err = errors.New("the engine does not tell where its containerd keeps layers")
	}
	if err == nil {
		_, err = c.d.Disk(dir)
	}
	if err != nil {
		return "", err
	}
	return dir, nil
}

func openSnapshots(e Engine, at site) (files, string, error) {
	if at.hidden != nil {
		return nil, at.hidden.Error(), nil
	}
	if why := readable(at.disk); why != "" {
		return nil, why, nil
	}
	if err := trusted(at.disk); err != nil {
		return nil, "", err
	}
	return snapshots{e, at.disk}, "", nil
}

func (s snapshots) root() string { return s.dir }

// size returns nothing: the size of an image includes its compressed layers, which a
// removal frees too.
func (snapshots) size(string) (int64, bool) { return 0, false }

func (s snapshots) image(ctx context.Context, chains []string) ([]string, error) {
	if len(chains) == 0 {
		return nil, nil
	}
	top := chains[len(chains)-1]
	if !chainName().MatchString(top) {
		return nil, fmt.Errorf("%q is not the name of a layer", top)
	}
	dirs, err := s.engine.SnapshotDirs(ctx, top)
	if err != nil {
		return nil, err
	}
	return s.checked(dirs[:min(len(dirs), len(chains))]) // highest first; an image without snapshots has none
}

func (s snapshots) container(ctx context.Context, id string) ([]string, error) {
	if !objectName().MatchString(id) {
		return nil, fmt.Errorf("%q is not the id of a container", id)
	}
	dirs, err := s.engine.WrittenDirs(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.checked(dirs)
}

var snapshotName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/snapshots/[0-9]{1,20}/fs$`) })

// checked refuses a path that is not that of a snapshot's files.
func (s snapshots) checked(dirs []string) ([]string, error) {
	for _, dir := range dirs {
		if len(dir) < len(s.dir) || dir[:len(s.dir)] != s.dir || !snapshotName().MatchString(dir[len(s.dir):]) {
			return nil, fmt.Errorf("containerd names %q, which is not a snapshot below %s", dir, s.dir)
		}
	}
	return dirs, nil
}
