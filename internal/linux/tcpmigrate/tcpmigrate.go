// Package tcpmigrate switches the migration of connections on, by which a
// listening socket that closes hands what was not accepted to another one in its
// group (tcp_migrate_req in the kernel's ip-sysctl documentation, Linux 5.14). The
// setting is the whole network namespace's.
package tcpmigrate

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"holdfast/internal/linux/kfile"
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

// Switch is a setting that was switched on.
type Switch struct{ was string }

// On switches it on. Where it was on already, Off leaves it so.
func On() (Switch, error) {
	was, err := Read()
	if err != nil {
		return Switch{}, err
	}
	s := Switch{was}
	if s.was != "1" {
		err = kfile.Write(setting, "1")
	}
	if err != nil {
		return Switch{}, fmt.Errorf("switch migration on: %w", err)
	}
	return s, nil
}

// Was is what the setting was before, for Before.
func (s Switch) Was() string { return s.was }

// Before is the switch of another process, whose setting was so.
func Before(was string) Switch {
	if was != "0" {
		was = "1" // there are no other values
	}
	return Switch{was}
}

// Off sets it as it was.
func (s Switch) Off() error {
	if s.was == "1" {
		return nil
	}
	if err := kfile.Write(setting, s.was); err != nil {
		return fmt.Errorf("switch migration off: %w", err)
	}
	return nil
}
