package move

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/proc"
)

// A checkpoint that is complete has a name of its own. If the agent is killed before it
// has sent or stored the image, the next agent of the node stores it for the session's
// next claim. The name contains the boot of the host: after a power failure the content
// of files may be lost.
const completePrefix = "complete-"

// completes finds the checkpoints in the directories of a node that are complete.
type completes struct {
	boot string   // random(4), boot_id
	left []string // paths of what an earlier agent has left
}

// newCompletes removes everything from the directories except complete checkpoints of
// this boot.
func newCompletes(dirs ...string) (c completes, err error) {
	if c.boot, err = proc.Host.BootID(); err != nil {
		return c, fmt.Errorf("identify this boot of the host: %w", err)
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return c, err
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if strings.HasPrefix(e.Name(), completePrefix+c.boot+"-") {
				c.left = append(c.left, path)
			} else if err := os.RemoveAll(path); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

// name returns the name of the complete checkpoint of a session's epoch.
func (c completes) name(o holdfast.Owner) (string, error) {
	name, err := nameOf(o.Key, o.Epoch)
	return completePrefix + c.boot + "-" + name, err
}

// mark gives a complete checkpoint its name, and returns its path.
func (c completes) mark(dir string, o holdfast.Owner) (path string, err error) {
	name, err := c.name(o)
	if err != nil {
		return "", err
	}
	path = filepath.Join(filepath.Dir(dir), name)
	return path, os.Rename(dir, path)
}

// find returns the complete checkpoint of a session's epoch that an earlier agent has
// left.
func (c completes) find(o holdfast.Owner) (path string, ok bool) {
	name, err := c.name(o)
	i := slices.IndexFunc(c.left, func(path string) bool { return filepath.Base(path) == name })
	if err != nil || i < 0 {
		return "", false
	}
	_, err = os.Lstat(c.left[i]) // it may have been stored already
	return c.left[i], err == nil
}

// dropComplete removes the checkpoints that an earlier agent has left and that no session
// needs.
func (m *Mover) dropComplete() {
	for _, path := range m.completes.left {
		if err := os.RemoveAll(path); err != nil {
			m.o.Log.Warn("the image of a session cannot be removed", "path", path, "err", err)
		}
	}
}

// storeComplete stores the complete checkpoint that an earlier agent has left of a
// session's epoch.
func (m *Mover) storeComplete(ctx context.Context, o holdfast.Owner) (s holdfast.Suspended, ok bool) {
	dir, ok := m.completes.find(o)
	if !ok {
		return s, false
	}
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	size, err := sizeOf(dir)
	label := Label{Key: o.Key, Epoch: o.Epoch, Template: o.Template, TakenAt: time.Now().UTC()}
	if err == nil {
		err = m.putSuspended(ctx, label, size, dir)
	}
	if err != nil {
		m.o.Log.Warn("the image that an earlier agent has left cannot be stored", "session", o.Key, "epoch", o.Epoch, "err", err)
		return s, false
	}
	if err := os.RemoveAll(dir); err != nil {
		m.o.Log.Warn("the image of a session cannot be removed", "session", o.Key, "err", err)
	}
	return m.suspended(label, size), true
}
