package spinup

import (
	"os"
	"path/filepath"
)

// HasUnpigz reports whether an engine started by a service manager finds unpigz,
// with which it decompresses layers in a process of its own
// (moby/go-archive, compression.go). dirs are the engine's PATH; none are
// systemd's default (systemd.exec(5), "$PATH").
func HasUnpigz(dirs ...string) bool {
	if len(dirs) == 0 {
		dirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	}
	for _, dir := range dirs {
		if info, err := os.Stat(filepath.Join(dir, "unpigz")); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}
