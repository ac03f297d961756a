package protect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/flock"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/netns"
)

// LockDir is the default directory of the port locks.
const LockDir = "/run/holdfast/protect"

// Lock reserves a port of a network namespace for one protect. An open file
// holds it (flock(2)), and so does every process that inherited the file. It
// ends when the last of them closes the file.
type Lock struct {
	path string
	port uint16
	file *os.File
	// left is residue at the port that is not tidied up: from the previous
	// protect, which was killed together with its keeper, or from a hold of this
	// process. nil means none.
	left *Residue
}

// content is the JSON content of the note of a lock.
type content struct {
	Pid  int      `json:"pid"`
	Left *Residue `json:"left,omitempty"`
}

// note writes the pid of the lock's holder, and what a hold leaves if all its processes
// are killed. After an error, for example on a full file system, the note before stays.
func (l *Lock) note(left *Residue) error {
	b, err := json.Marshal(content{os.Getpid(), left})
	if err != nil {
		return err
	}
	return atomicfile.WriteNoSync(notePath(l.path), b, 0o600)
}

// notePath is the file with the content of a lock. The lock file itself stays empty,
// because a keeper has inherited it and it cannot be replaced.
func notePath(lock string) string { return strings.TrimSuffix(lock, ".lock") + ".note" }

// noteAll writes into each port's note what a hold leaves at that port: the
// next protect may cover only some of the ports.
func noteAll(locks []*Lock, left *Residue) error {
	for _, l := range locks {
		note := left.at(l.port)
		if note == nil {
			note = l.left
		}
		if err := l.note(note); err != nil {
			return err
		}
	}
	return nil
}

// keepAll makes Unlock keep the notes of what a hold has left.
func keepAll(locks []*Lock, left *Residue) {
	for _, l := range locks {
		l.left = left.at(l.port)
	}
}

// at returns the part of l at one port; nil for a nil l.
func (l *Residue) at(port uint16) *Residue {
	if l == nil {
		return nil
	}
	of := *l
	of.Of = slices.DeleteFunc(slices.Clone(l.Of), func(a Address) bool { return a.Port != port })
	return &of
}

// readContent reads the note of the lock at path. It returns the zero content if the
// note cannot be read.
func readContent(path string) (c content) {
	if b, err := kfile.Read(notePath(path), maxMessage); err == nil {
		_ = json.Unmarshal(b, &c)
	}
	return c
}

// lockAgain is the interval at which a held lock is tried again.
const lockAgain = 20 * time.Millisecond

// LockPorts locks the ports of the namespace at path. It creates directory dir
// and waits until ctx ends. ErrTaken names the process that has a port.
func LockPorts(ctx context.Context, dir, path string, ports []uint16) ([]*Lock, error) {
	id, err := namespaceID(path)
	if err != nil {
		return nil, err
	}
	var locks []*Lock
	for _, p := range ports { // in ascending order, so that two callers cannot deadlock
		l, err := lockFile(ctx, dir, fmt.Sprintf("%s-%d.lock", id, p), p)
		if err != nil {
			Unlock(locks)
			return nil, fmt.Errorf("lock port %d: %w", p, err)
		}
		locks = append(locks, l)
	}
	return locks, nil
}

// namespaceID identifies the network namespace at path; "" is the current one.
func namespaceID(path string) (string, error) {
	if path == "" {
		path = netns.OfProcess(0)
	}
	return netns.ID(path)
}

// Unlock releases locks. It removes their files if no other process has the lock and
// there is no residue for the next protect.
func Unlock(locks []*Lock) {
	for _, l := range locks {
		if l.left != nil {
			_ = l.note(l.left) // the file may have the note of a later hold
			l.file.Close()
			continue
		}
		l.file.Close()
		// A keeper that is still running also has the lock. If none is, remove
		// the file under a new lock.
		if again, err := flock.Open(l.path, os.O_RDWR|os.O_CREATE); err == nil {
			_ = errors.Join(os.Remove(notePath(l.path)), os.Remove(l.path))
			again.Close()
		}
	}
}

// lockFile locks the file name in directory dir, which it creates.
func lockFile(ctx context.Context, dir, name string, port uint16) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name)
	tick := time.NewTicker(lockAgain)
	defer tick.Stop()
	for {
		f, err := flock.Open(path, os.O_RDWR|os.O_CREATE)
		switch {
		case err == nil:
			l := &Lock{path, port, f, readContent(path).Left}
			// The pid is for the error of a refused protect.
			if err := l.note(l.left); err != nil {
				f.Close()
				return nil, err
			}
			return l, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (process %d)", ErrTaken, readContent(path).Pid)
		}
	}
}
