package plug

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/threads"
)

// Probe checks that the kernel supports plugs and the caller has permission: it makes
// a plug on lo in a new network namespace. The error is ErrUnsupported, with the
// missing module, or that of the kernel.
func Probe() error {
	return threads.Spend(probe) // the namespace ends with the thread
}

func probe() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace for a test plug: %w", err)
	}
	p, err := Install("lo")
	if err != nil {
		return err
	}
	return errors.Join(p.Hold(Match{Port: 1}), p.Remove())
}
