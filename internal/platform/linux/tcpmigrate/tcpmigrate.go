// Package tcpmigrate switches the migration of connections on, by which a
// listening socket that closes hands what was not accepted to another one in its
// group (tcp_migrate_req in the kernel's ip-sysctl documentation, Linux 5.14). The
// setting is the whole network namespace's, and those who have it switched on
// there count themselves: the last one sets it as it was.
package tcpmigrate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"holdfast/internal/platform/linux/kfile"
)

// setting is of the network namespace of who opens it.
const setting = "/proc/sys/net/ipv4/tcp_migrate_req"

// ErrNotThere means that the kernel is too old.
var ErrNotThere = errors.New("the kernel has no tcp_migrate_req (Linux 5.14)")

// Read is the setting, "0" or "1". ErrNotThere.
func Read() (string, error) {
	b, err := kfile.Read(setting, 64)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrNotThere
	}
	return strings.TrimSpace(string(b)), err
}

// Original is the setting without those who have it switched on now: what the
// last of them will set. ErrNotThere.
func Original() (string, error) {
	ns, err := lock()
	if err != nil {
		return "", err
	}
	defer ns.Close()
	return original(ns)
}

// original is Original under the lock.
func original(ns *os.File) (string, error) {
	switch used, err := inUse(ns); {
	case err != nil:
		return "", err
	case used:
		return "0", nil
	}
	return Read()
}

// Switch is a setting that was switched on. It is for one goroutine.
type Switch struct {
	was   string
	share *os.File // says that we use it; nil where there is nothing to undo
}

// On switches it on. Where it was on already by somebody else's wish, Off leaves
// it so. A share in it ends with this process.
func On() (Switch, error) {
	ns, err := lock()
	if err != nil {
		return Switch{}, fmt.Errorf("switch migration on: %w", err)
	}
	s := Switch{share: ns}
	s.was, err = original(ns)
	if err == nil && s.was != "1" {
		if err = use(ns); err == nil {
			err = errors.Join(kfile.Write(setting, "1"), unlock(ns))
		}
	}
	if err != nil || s.was == "1" {
		s.share = nil
		ns.Close()
	}
	if err != nil {
		return Switch{}, fmt.Errorf("switch migration on: %w", err)
	}
	return s, nil
}

// Was is what the setting was before, for Before.
func (s Switch) Was() string { return s.was }

// Before is the switch of another process, which is gone and whose setting was so.
func Before(was string) Switch {
	if was != "0" {
		was = "1" // there are no other values
	}
	return Switch{was: was}
}

// Off sets it as it was, unless others use it.
func (s Switch) Off() error {
	if s.was == "1" {
		return nil
	}
	if s.share != nil {
		defer s.share.Close()
	}
	ns, err := lock()
	if err != nil {
		return fmt.Errorf("switch migration off: %w", err)
	}
	defer ns.Close()
	if s.share != nil {
		err = leave(s.share)
	}
	if err == nil {
		var used bool
		if used, err = inUse(ns); err == nil && !used {
			err = kfile.Write(setting, "0")
		}
	}
	if err != nil {
		return fmt.Errorf("switch migration off: %w", err)
	}
	return nil
}
