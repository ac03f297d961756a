package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast"
)

// becomeBench replaces this process by holdfast-bench: the one beside this program,
// or the one in $PATH. It returns only on an error.
func becomeBench(args []string) error {
	path, err := exec.LookPath("holdfast-bench")
	if self, e := os.Executable(); e == nil {
		if beside := filepath.Join(filepath.Dir(self), "holdfast-bench"); unix.Access(beside, unix.X_OK) == nil {
			path, err = beside, nil
		}
	}
	if err != nil {
		return holdfast.WithHint(errors.New("holdfast-bench is not installed"),
			"install the package holdfast-bench, or run `make build` in the sources, which builds bin/holdfast-bench")
	}
	if err := unix.Exec(path, append([]string{"holdfast-bench"}, args...), os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}
