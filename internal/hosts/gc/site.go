package gc

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
)

// site is where an engine keeps its data, and what can be done there.
type site struct {
	info   engine.Info
	layers *overlay // nil: not to be seen
	trash  *trash   // nil: files cannot be linked away
	why    string   // there is no trash; "" where one would be of no use
	noRoom bool     // because the disk is full
	local  string   // data root, "" where it is not on this host
}

// site finds out. An engine whose data is not on this host has no disk that
// could be looked at.
func (c *Collector) site(ctx context.Context) (site, error) {
	info, err := c.d.Engine.Info(ctx)
	if err != nil {
		return site{}, err
	}
	s := site{info: info}
	if info.Socket != "" {
		if _, err := c.d.Disk(info.DataRoot); err == nil {
			s.local = info.DataRoot
		}
	}
	s.layers, s.why = openOverlay(info)
	return s, nil
}

// openTrash makes links possible where they are. Only who holds the lock may call
// it.
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
	t, err := openTrash(s.local, s.layers.trees)
	s.noRoom = errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	if err != nil {
		s.why = fmt.Sprintf("files are not linked away before a removal: %v", err)
		return
	}
	s.trash = t // with link off too: an earlier cycle may have left something
}

// reopenTrash tries again where the disk had no room for the directory: by now
// something may have gone.
func (c *Collector) reopenTrash(s *site) {
	if s.trash == nil && s.noRoom {
		c.openTrash(s)
	}
}

// links reports whether files are linked away.
func (c *Collector) links(s site) bool { return s.trash != nil && c.cfg.Link }

// disk is the room on the engine's disk; of an engine elsewhere nothing is known,
// and nothing is over any mark.
func (c *Collector) disk(s site) (Disk, error) {
	if s.local == "" {
		return Disk{}, nil
	}
	return c.d.Disk(s.local)
}
