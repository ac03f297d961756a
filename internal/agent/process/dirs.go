// Package process is what the long-running processes of Holdfast have in common: the
// agent of a node, the agent of a Kubernetes node, and the garbage collector without an
// agent. It locks their directories, connects to the engine, and opens the listener of
// the API.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/flock"
	"holdfast/internal/platform/linux/proc"
)

// Prepare creates and locks the directories of an agent, and returns the id of its
// node. Two agents on one data directory would both own its sessions. Two agents on
// one run directory would share a deadman, which protects one of them only. The locks
// are held until they are closed.
func Prepare(c config.Config, log *slog.Logger) (Locks, holdfast.NodeID, error) {
	var held Locks
	for _, d := range []struct{ dir, key, hint string }{
		{c.DataDir, "data_dir", "another agent runs on this data directory; end it with: holdfast agent stop --keep"},
		{c.RunDir, "run_dir", "another agent runs in this run directory; give each agent of a host its own run_dir, or end the other one with: holdfast agent stop --keep"},
	} {
		if err := os.MkdirAll(d.dir, 0o700); err != nil {
			held.Close()
			return nil, "", holdfast.WithHint(fmt.Errorf("making the agent's directory: %w", err), "run the agent as root, or set other directories with data_dir and run_dir")
		}
		if len(held) > 0 && sameDir(c.DataDir, c.RunDir) {
			continue
		}
		f, err := flock.Open(filepath.Join(d.dir, lockName), os.O_CREATE|os.O_RDWR)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = holdfast.WithHint(err, d.hint)
		}
		if err != nil {
			held.Close()
			return nil, "", fmt.Errorf("%s: locking %s: %w", d.key, d.dir, err)
		}
		held = append(held, f)
	}
	node, err := nodeID(c, log)
	if err != nil {
		held.Close()
		return nil, "", err
	}
	return held, node, nil
}

// Locks are the locks on directories.
type Locks []*os.File

// Close releases the locks.
func (l Locks) Close() {
	for _, f := range l {
		f.Close()
	}
}

// Host identifies this boot of this host and a directory on it. Neither the copy of a disk
// nor a copy of the directory has the same identity, and after a restart of the host the
// identity is another one. An agent that has locked the directory knows that every
// earlier agent with this identity has ended.
func Host(dir string) (string, error) {
	boot, err := proc.Host.BootID()
	if err != nil {
		return "", fmt.Errorf("identifying this boot of the host: %w", err)
	}
	var at unix.Stat_t
	if err := unix.Stat(dir, &at); err != nil {
		return "", fmt.Errorf("identifying the directory %s: %w", dir, err)
	}
	return fmt.Sprintf("%s %d:%d", boot, at.Dev, at.Ino), nil
}

// sameDir reports whether two paths are one directory.
func sameDir(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// Names in an agent's directories.
const (
	lockName  = "lock" // locked by the agent, in each directory
	idName    = "node"
	storeName = "ownership.db" // the embedded store
)

// LeaseFile is the file in which the agent keeps the node's lease.
func LeaseFile(c config.Config) string { return filepath.Join(c.DataDir, "lease") }

// StoreFile is the file of the embedded store.
func StoreFile(c config.Config) string { return filepath.Join(c.DataDir, storeName) }

// keptID returns the node's id in the data directory. An empty file, which a power failure
// may leave, counts as missing.
func keptID(c config.Config) (holdfast.NodeID, error) {
	text, err := os.ReadFile(filepath.Join(c.DataDir, idName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading the node's id: %w", err)
	}
	return holdfast.NodeID(strings.TrimSpace(string(text))), nil
}

// nodeID reads the node's id from the data directory, or writes it there at the first
// start. The lease of the node's records is in the same directory: under another id
// the records would have no owner, and their keys could not boot. A renamed host keeps
// its id; a configuration with another id is an error.
func nodeID(c config.Config, log *slog.Logger) (holdfast.NodeID, error) {
	node := holdfast.NodeID(c.Node)
	path := filepath.Join(c.DataDir, idName)
	kept, err := keptID(c)
	if err != nil {
		return "", err
	}
	switch {
	case kept == "":
		if err := atomicfile.Write(path, []byte(string(node)+"\n"), 0o600); err != nil {
			return "", fmt.Errorf("writing the node's id: %w", err)
		}
	case kept == node:
	case c.NodeGiven:
		return "", holdfast.WithHint(fmt.Errorf("node: this data directory belongs to node %s, not to node %s", kept, node),
			fmt.Sprintf("call the node %s again; or drain it under that name, and then: holdfast node new-id", kept))
	default:
		log.Info("the host was renamed; the node keeps its id", "node", kept, "host", node)
		node = kept
	}
	return node, nil
}
