package gc

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast"
)

// trusted returns an error if a user other than root and the user of this process can
// write to the data root of an engine, or can replace a directory on the way to it. Such
// a user could lead the collector, which is root, out of the data root by a symbolic link.
func trusted(dataRoot string) error {
	real, err := filepath.EvalSymlinks(dataRoot)
	if err != nil {
		return fmt.Errorf("the engine's data root: %w", err)
	}
	// The directories on the literal path have the links.
	for _, path := range []string{real, filepath.Clean(dataRoot)} {
		for dir := path; ; dir = filepath.Dir(dir) {
			// In a sticky directory, a user can only replace what is that user's own.
			if why, err := writable(dir, dir != path); err != nil {
				return fmt.Errorf("the engine's data root: %w", err)
			} else if why != "" {
				return holdfast.WithHint(fmt.Errorf("the engine's data root %s is not safe from other users: %s %s", dataRoot, dir, why),
					"collections need an engine of root, with a data root that only root can write; for a rootless engine set gc.enabled: false")
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return nil
}

// writable returns why another user can change a directory; "" if none can.
func writable(dir string, sticky bool) (why string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", fmt.Errorf("stat %s: %w", dir, err)
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to user %d", st.Uid), nil
	case sticky && st.Mode&unix.S_ISVTX != 0:
	case st.Mode&0o002 != 0:
		return "is writable by all users", nil
	case st.Mode&0o020 != 0 && st.Gid != 0:
		return fmt.Sprintf("is writable by group %d", st.Gid), nil
	}
	return "", nil
}
