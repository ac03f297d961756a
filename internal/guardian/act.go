package guardian

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/kill"
	"holdfast/internal/linux/pidfd"
)

// killBudget is how long a guardian tries to kill containers.
const killBudget = 10 * time.Second

// perform carries one undo out. What is gone needs no undoing.
func perform(kind Kind, processes []*pidfd.Process, targets []*kill.Target) error {
	switch kind {
	case Continue:
		return signalAll(processes, unix.SIGCONT)
	case Kill:
		ctx, cancel := context.WithTimeout(context.Background(), killBudget)
		defer cancel()
		var k kill.Killer
		var err error
		for _, l := range k.Kill(ctx, targets).Left {
			err = errors.Join(err, fmt.Errorf("container %s is not dead: %s", l.Name, l.Reason))
		}
		return err
	}
	return fmt.Errorf("unknown undo %q", kind)
}

// signalAll signals every process that is still there.
func signalAll(processes []*pidfd.Process, sig unix.Signal) error {
	var err error
	for _, p := range processes {
		if e := p.Signal(sig); !errors.Is(e, pidfd.ErrGone) {
			err = errors.Join(err, e)
		}
	}
	return err
}
