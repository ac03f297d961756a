package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/linux/flock"
	"holdfast/internal/sessions/session"
)

// NewID makes a host that is a copy of another one a node of its own: it removes the
// other node's id, lease and embedded store from the data directory. The next agent
// takes the id of the configuration, which NewID returns as now. It refuses while an
// agent runs, if the id would stay, and on the host whose agent wrote the files. If it
// is interrupted, it may be called again.
func NewID(c config.Config) (before, now holdfast.NodeID, err error) {
	now = holdfast.NodeID(c.Node)
	lock, err := flock.Open(filepath.Join(c.DataDir, lockName), os.O_CREATE|os.O_RDWR)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = holdfast.WithHint(err, "an agent runs on this data directory; end it with: holdfast agent stop")
	}
	if err != nil {
		return "", now, fmt.Errorf("data_dir: locking %s: %w", c.DataDir, err)
	}
	defer lock.Close()
	if before, err = keptID(c); err != nil {
		return "", now, err
	}
	if before == now {
		return before, now, holdfast.WithHint(fmt.Errorf("this host would still be node %s", now),
			"set another id with node: in the configuration, or another host name")
	}
	here, err := Host(c.DataDir)
	if err != nil {
		return before, now, err
	}
	kept, err := session.KeptBy(LeaseFile(c))
	if err != nil {
		return before, now, err
	}
	if kept == here {
		return before, now, holdfast.WithHint(fmt.Errorf("this host is node %s itself, not a copy of it, and its sessions may still run", before),
			"drain it first: start its agent, then: holdfast agent stop")
	}
	// The id is the last: until it is removed, the command may be repeated.
	for _, path := range []string{LeaseFile(c), StoreFile(c), filepath.Join(c.DataDir, idName)} {
		if err := os.RemoveAll(path); err != nil {
			return before, now, fmt.Errorf("removing what this host has of node %s: %w", before, err)
		}
	}
	return before, now, nil
}
