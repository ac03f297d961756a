// Package tcpmigrate switches on the migration of connections: a closing listening
// socket passes its unaccepted connections to another one in its group
// (tcp_migrate_req in the kernel's ip-sysctl documentation, Linux 5.14). The setting
// applies to the whole network namespace. Its users are counted, and the last one
// restores the old value.
package tcpmigrate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"holdfast/internal/platform/linux/kfile"
)

// setting is that of the network namespace of the opening process.
const setting = "/proc/sys/net/ipv4/tcp_migrate_req"

// ErrUnsupported means that the kernel is too old.
var ErrUnsupported = errors.New("the kernel has no tcp_migrate_req (Linux 5.14)")

// Read is the setting, "0" or "1". ErrUnsupported.
func Read() (string, error) {
	b, err := kfile.Read(setting, 64)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrUnsupported
	}
	return strings.TrimSpace(string(b)), err
}

// Original is the value that the last present user will restore. ErrUnsupported.
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

// Switch is one use of the setting. It is for one goroutine.
type Switch struct {
	was   string
	share *os.File // marks this use; nil if there is nothing to undo
}

// On switches the setting on. If it was on without a user of this package, Off leaves
// it on. The use ends with this process.
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

// Was is the value before On, for Before.
func (s Switch) Was() string { return s.was }

// Before is the Switch of a dead process that had found the value was.
func Before(was string) Switch {
	if was != "0" {
		was = "1" // there are no other values
	}
	return Switch{was: was}
}

// Off restores the old value, unless there are other users.
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
