package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
)

// state is the file of a plan on disk while the plan is armed.
type state struct {
	BootID   string      `json:"boot_id"`
	Guardian process     `json:"guardian"`
	Name     string      `json:"name"`
	Undo     []stateUndo `json:"undo"`
}

type stateUndo struct {
	Kind      Kind      `json:"kind"`
	Processes []process `json:"processes,omitempty"`
	Limits    []Limit   `json:"limits,omitempty"`
}

const (
	statePattern = "undo-*.json"
	maxState     = 4 << 20
)

// self is this process with its start time.
func self() (process, error) {
	s, err := proc.Host.Stat(os.Getpid())
	return process{s.Pid, s.Start}, err
}

// write writes the plan to the disk. It needs no rename: the risky act begins after
// the file is complete, so an incomplete file has nothing to undo.
func (s state) write(path string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// Recover undoes the plans in dir whose starter and guardian are both dead, and
// removes their files. It returns the number of those plans. It leaves alone a plan
// whose guardian lives, a plan of an earlier boot, and processes that are gone. An
// agent calls it first when it starts.
func Recover(dir string) (int, error) {
	files, err := filepath.Glob(filepath.Join(dir, statePattern))
	if err != nil || len(files) == 0 {
		return 0, err
	}
	boot, err := proc.Host.BootID()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, f := range files {
		done, e := recoverFile(f, boot)
		if done {
			n++
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("recover from %s: %w", f, e))
		}
	}
	return n, err
}

func recoverFile(path, boot string) (bool, error) {
	b, err := kfile.Read(path, maxState)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // its guardian has just finished
	} else if err != nil {
		return false, err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return false, os.Remove(path) // cut off while it was written: the act had not begun
	}
	if s.BootID != boot {
		return false, os.Remove(path)
	}
	if g, err := pidfd.OpenStarted(s.Guardian.Pid, s.Guardian.Start); err == nil {
		g.Close()
		return false, nil
	}
	for _, u := range s.Undo {
		if !u.Kind.harmless() {
			continue
		}
		held, e := hold(u.Processes)
		err = errors.Join(err, e, part{kind: u.Kind, processes: held, limits: u.Limits}.perform())
		release(held)
	}
	if err != nil {
		return true, err // the file stays for the next try
	}
	return true, os.Remove(path)
}

// hold opens the processes that are still the same.
func hold(ps []process) ([]*pidfd.Process, error) {
	var held []*pidfd.Process
	var err error
	for _, p := range ps {
		h, e := pidfd.OpenStarted(p.Pid, p.Start)
		switch {
		case e == nil:
			held = append(held, h)
		case !errors.Is(e, pidfd.ErrGone) && !errors.Is(e, pidfd.ErrReused):
			err = errors.Join(err, e)
		}
	}
	return held, err
}

func release(ps []*pidfd.Process) {
	for _, p := range ps {
		p.Close()
	}
}

// Guards reports whether a plan in dir would restore the file: the process that
// lowered the limit has not raised it again yet, or has just died.
func Guards(dir, file string) (bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, statePattern))
	if err != nil {
		return false, err
	}
	for _, f := range files {
		b, err := kfile.Read(f, maxState)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return false, err
		}
		var s state
		if json.Unmarshal(b, &s) != nil {
			continue // being written: the act has not begun
		}
		for _, u := range s.Undo {
			if slices.ContainsFunc(u.Limits, func(l Limit) bool { return l.File == file }) {
				return true, nil
			}
		}
	}
	return false, nil
}
