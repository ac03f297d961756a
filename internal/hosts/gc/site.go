package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// site is where an engine keeps its data, and which operations are possible
// there.
type site struct {
	layers files  // nil: not readable
	trash  *trash // nil: files cannot be linked
	why    string // why there is no trash; "" if a trash has no use
	noRoom bool   // no trash because the disk is full
	local  string // data root; "" if it is not visible
	disk   string // directory on the disk of the images' layers; "" if it is not visible
	hidden error  // why that disk of an engine with a unix socket is not visible
}

// ErrHidden: the disk of the engine's layers is not visible, so rules that depend on it never
// delete anything.
var ErrHidden = errors.New("the disk of the engine is not visible")

// site returns the engine's site. If the data is not visible, the disk is
// unknown. It refuses a data root that is not trusted.
func (c *Collector) site(ctx context.Context) (site, error) {
	info, err := c.d.Engine.Info(ctx)
	if err != nil {
		return site{}, err
	}
	var s site
	if info.Socket != "" {
		if _, s.hidden = c.d.Disk(info.DataRoot); s.hidden == nil {
			if err := trusted(info.DataRoot); err != nil {
				return site{}, err
			}
			s.local, s.disk = info.DataRoot, info.DataRoot
		}
	}
	if s.local != "" && info.ImageStore == engine.ContainerdStore {
		// Layers may be on another disk than the data root, in containerd's directory.
		s.disk, s.hidden = c.snapshotRoot(ctx)
		if ctx.Err() != nil {
			return site{}, ctx.Err()
		}
	}
	s.layers, s.why, err = c.openFiles(info, s)
	return s, err
}

// Check returns ErrHidden if rules depend on a disk that is not visible, such as that of an
// engine whose socket is mounted into a container without its data root, or without the
// directories of its containerd. If the engine is on another host it returns nil.
func (c *Collector) Check(ctx context.Context) error {
	s, err := c.site(ctx)
	if err != nil {
		return err
	}
	return c.mustSee(s)
}

func (c *Collector) mustSee(s site) error {
	if s.hidden == nil || !slices.ContainsFunc(c.cfg.rules(), Rule.needsDisk) {
		return nil
	}
	return holdfast.WithHint(fmt.Errorf("%w: %w", ErrHidden, s.hidden),
		"in a container, mount the engine's data root at the same path: -v /var/lib/docker:/var/lib/docker:rslave, "+
			"and for the containerd image store: -v /run/containerd:/run/containerd -v /var/lib/containerd:/var/lib/containerd:ro")
}

// unknownDisk returns the notice about a disk that is not visible, or "".
func (s site) unknownDisk() string {
	switch {
	case s.hidden != nil:
		return fmt.Sprintf("marks and free space are not checked: %v", s.hidden)
	case s.local == "":
		return "the engine's data is not on this host: marks and free space are not checked"
	}
	return ""
}

// openTrash opens the trash if the layers are readable. The caller holds the lock
// of the cycle.
func (c *Collector) openTrash(s *site) {
	switch {
	case s.layers == nil && s.why == "":
		return
	case s.layers == nil:
		s.why = "files are not linked away before a removal: " + s.why
		return
	case !c.cfg.Link:
		s.why = "files are not linked away before a removal: link is off"
	}
	t, err := openTrash(s.local, s.layers.root())
	s.noRoom = errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	if err != nil {
		s.why = fmt.Sprintf("files are not linked away before a removal: %v", err)
		return
	}
	s.trash = t // also if link is off: an earlier cycle may have left files
}

// links reports whether files are linked into the trash.
func (c *Collector) links(s site) bool { return s.trash != nil && c.cfg.Link }

// disk returns the space on the disk of the engine's layers. If it is not visible, as that of
// a remote engine, disk returns the zero Disk, which is over no mark.
func (c *Collector) disk(s site) (Disk, error) {
	if s.disk == "" {
		return Disk{}, nil
	}
	return c.d.Disk(s.disk)
}
