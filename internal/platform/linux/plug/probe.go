package plug

import (
	"fmt"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/threads"
)

// Probe reports whether this kernel can do it and the caller may: it makes a plug
// on the loopback device of a network namespace that nobody else sees. The error
// is ErrUnsupported, with the module that is missing, or the kernel's refusal.
func Probe() error {
	return threads.Spend(probe) // the namespace ends with the thread
}

func probe() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace to try a plug in: %w", err)
	}
	p, err := Install("lo", Match{Port: 1})
	if err != nil {
		return err
	}
	return p.Remove()
}
