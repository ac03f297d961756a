package gc

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// site is where an engine keeps its data, and which operations are possible
// there.
type site struct {
	layers files  // nil: not readable
	trash  *trash // nil: files cannot be linked
	why    string // why there is no trash; "" if a trash has no use
	noRoom bool   // no trash because the disk is full
	local  string // data root; "" if it is not on this host
}

// site returns the engine's site. If the data is not on this host, the disk is
// unknown. It refuses a data root that is not trusted.
func (c *Collector) site(ctx context.Context) (site, error) {
	info, err := c.d.Engine.Info(ctx)
	if err != nil {
		return site{}, err
	}
	var s site
	if info.Socket != "" {
		if _, err := c.d.Disk(info.DataRoot); err == nil {
			if err := trusted(info.DataRoot); err != nil {
				return site{}, err
			}
			s.local = info.DataRoot
		}
	}
	s.layers, s.why, err = c.openFiles(ctx, info, s.local != "")
	return s, err
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

// disk returns the space on the engine's disk. For a remote engine it returns the
// zero Disk, which is over no mark.
func (c *Collector) disk(s site) (Disk, error) {
	if s.local == "" {
		return Disk{}, nil
	}
	return c.d.Disk(s.local)
}
