package spinup

import (
	"os"
	"path/filepath"
)

// HasUnpigz reports whether an engine that a service manager started finds unpigz. The
// engine then decompresses layers in a separate process (moby/go-archive,
// compression.go). dirs are the engine's PATH; without dirs it is systemd's default
// (systemd.exec(5), "$PATH").
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
