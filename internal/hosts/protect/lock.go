package protect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/flock"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/netns"
)

// LockDir is where ports are locked by default.
const LockDir = "/run/holdfast/protect"

// Lock keeps a port of a network namespace for one protect. It is held by an
// open file (flock(2)), and so by whoever has inherited it, and ends with the
// last of them.
type Lock struct {
	path string
	port uint16
	file *os.File
	// left is what has been left behind at the port and is not tidied up, by
	// the one before, who was killed together with the keeper, or by a hold
	// of ours; nil for nothing.
	left *Left
}

// content is what is in a lock's file.
type content struct {
	Pid  int   `json:"pid"`
	Left *Left `json:"left,omitempty"`
}

// note writes down who has the lock, and what a hold leaves if all are killed.
func (l *Lock) note(left *Left) error {
	b, err := json.Marshal(content{os.Getpid(), left})
	if err != nil {
		return err
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err = l.file.WriteAt(b, 0)
	return err
}

// noteAll writes down what a hold leaves, in each port's file what is of that
// port: the next protect may be of some of them only.
func noteAll(locks []*Lock, left *Left) error {
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

// keepAll makes what a hold has left stay noted.
func keepAll(locks []*Lock, left *Left) {
	for _, l := range locks {
		l.left = left.at(l.port)
	}
}

// at is what is left at one port; nil is nothing.
func (l *Left) at(port uint16) *Left {
	if l == nil {
		return nil
	}
	of := *l
	of.Of = slices.DeleteFunc(slices.Clone(l.Of), func(a Address) bool { return a.Port != port })
	return &of
}

// readContent is what is in the file at path; nothing where it cannot be read.
func readContent(path string) (c content) {
	if b, err := kfile.Read(path, maxMessage); err == nil {
		_ = json.Unmarshal(b, &c)
	}
	return c
}

// lockAgain is how often a lock that is taken is tried again.
const lockAgain = 20 * time.Millisecond

// LockPorts locks the ports of the namespace at path, in directory dir, which is
// made; it waits until ctx ends. ErrTaken names who has a port.
func LockPorts(ctx context.Context, dir, path string, ports []uint16) ([]*Lock, error) {
	id, err := namespaceID(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock ports: %w", err)
	}
	var locks []*Lock
	for _, p := range ports { // in their order, the same for all: no deadlock
		l, err := lockFile(ctx, filepath.Join(dir, fmt.Sprintf("%s-%d.lock", id, p)), p)
		if err != nil {
			Unlock(locks)
			return nil, fmt.Errorf("lock port %d: %w", p, err)
		}
		locks = append(locks, l)
	}
	return locks, nil
}

// namespaceID names the network namespace at path, "" being ours.
func namespaceID(path string) (string, error) {
	if path == "" {
		path = netns.OfProcess(0)
	}
	return netns.ID(path)
}

// Unlock lets go of locks, and removes their files where nobody else has them and
// there is nothing that the next one has to know.
func Unlock(locks []*Lock) {
	for _, l := range locks {
		if l.left != nil {
			_ = l.note(l.left) // what is noted may be a later hold's
			l.file.Close()
			continue
		}
		l.file.Close()
		// A keeper that lives on has it still; else it is nobody's, and ours
		// to remove under a lock of our own.
		if again, err := flock.Open(l.path, os.O_RDWR|os.O_CREATE); err == nil {
			_ = os.Remove(l.path)
			again.Close()
		}
	}
}

func lockFile(ctx context.Context, path string, port uint16) (*Lock, error) {
	tick := time.NewTicker(lockAgain)
	defer tick.Stop()
	for {
		f, err := flock.Open(path, os.O_RDWR|os.O_CREATE)
		switch {
		case err == nil:
			l := &Lock{path, port, f, readContent(path).Left}
			// The pid is for whoever is refused.
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
