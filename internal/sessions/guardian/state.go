package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
)

// state is a plan as it lies on disk while it is armed.
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

// bootID tells this boot from others, random(4).
func bootID() (string, error) {
	b, err := kfile.Read("/proc/sys/kernel/random/boot_id", 256)
	return strings.TrimSpace(string(b)), err
}

// whoami is this process with its start time.
func whoami() (process, error) {
	s, err := proc.Host.Stat(os.Getpid())
	return process{s.Pid, s.Start}, err
}

// write puts the plan on disk. There is no rename: nothing risky begins before
// the file is whole, so one that is not whole undoes nothing.
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

// Recover undoes what is left armed in dir by starters and guardians that are
// both dead, and removes their files. It returns how many plans there were. A
// plan whose guardian lives, one of an earlier boot, and processes that have
// gone are left alone. An agent calls it when it starts, before anything else.
func Recover(dir string) (int, error) {
	files, err := filepath.Glob(filepath.Join(dir, statePattern))
	if err != nil || len(files) == 0 {
		return 0, err
	}
	boot, err := bootID()
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
		return false, os.Remove(path) // cut off while it was written: nothing had begun
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

// Guards reports whether a plan that is written down in dir would write the file
// back: whoever lowered it has not raised it again, or died just now.
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
			continue // being written: nothing has begun
		}
		for _, u := range s.Undo {
			if slices.ContainsFunc(u.Limits, func(l Limit) bool { return l.File == file }) {
				return true, nil
			}
		}
	}
	return false, nil
}
