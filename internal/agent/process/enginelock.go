package process

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/flock"
)

// EngineLocks is the directory of the locks of LockEngine. All agents of a host use the
// same one, whatever their own directories are.
const EngineLocks = "/run/holdfast/engines"

// LockEngine locks the containers of a node on an engine for one agent, by a file in dir,
// until the file is closed. Two agents with one node id would kill each other's
// containers. An engine is identified by its data root, because it may have several
// sockets, and a container may have another path to a socket.
func LockEngine(dir string, e engine.Info, node holdfast.NodeID) (*os.File, error) {
	doing := fmt.Sprintf("engine: locking the containers of node %s", node)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, holdfast.WithHint(fmt.Errorf("%s: %w", doing, err), "run the agent as root")
	}
	name := sha256.Sum256([]byte(e.Name + "\n" + cmp.Or(e.DataRoot, e.Socket) + "\n" + string(node)))
	f, err := flock.Open(filepath.Join(dir, fmt.Sprintf("%x", name[:16])), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, holdfast.WithHint(fmt.Errorf("engine: another agent of node %s uses the engine at %s", node, e.Socket),
			"end that agent with: holdfast agent stop --keep; or give this one its own id with node:")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return f, nil
}
