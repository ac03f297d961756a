package bench

import (
	"os"
	"path/filepath"
	"strings"
)

// survivors counts the containers that still have a process. It reads the control
// groups of every process from /proc, independent of the data that the kill uses.
// Zombies do not count, because they hold no resources.
func survivors(ids []string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	alive := make(map[string]bool)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the process has just ended
		}
		for _, id := range ids {
			if strings.Contains(string(b), id) && !isZombie(filepath.Dir(f)) {
				alive[id] = true
			}
		}
	}
	return len(alive), nil
}

func isZombie(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return true // gone
	}
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}
