package labtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/flock"
)

// Build builds a program of this module, such as holdfast/cmd/holdfast, to the file
// path. The program is static. All builds of a test run have the same settings of CGO,
// -trimpath and tags as a release, so that each dependency is compiled once. The user's cache
// directory keeps a copy, so that each program is linked once. Any goroutine may call Build.
func Build(ctx context.Context, program, path string, flags ...string) error {
	if err := Uses(ctx, program); err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	cached := filepath.Join(cache, "holdfast-test", "bin", strings.Join(append([]string{filepath.Base(program)}, flags...), ""))
	if err := os.MkdirAll(filepath.Dir(cached), 0o755); err != nil {
		return err
	}
	lock, err := flock.Lock(cached+".lock", os.O_CREATE|os.O_RDWR, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	args := slices.Concat([]string{"build", "-trimpath", "-tags=grpcnotrace"}, flags, []string{"-o", cached, program})
	build := exec.CommandContext(ctx, "go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", program, err, out)
	}
	if out, err := exec.CommandContext(ctx, "cp", "--reflink=auto", cached, path).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w\n%s", cached, err, out)
	}
	return nil
}

// Uses makes go test run a package's tests again if a program of this module has changed
// that the tests run. The cache of go test depends on the files that the test program reads
// itself (go help test), not on those that the compiler reads. So Uses reads the metadata
// of all sources of the program.
func Uses(ctx context.Context, program string) error {
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Dir,EmbedFiles,Module", program)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("list what %s is made of: %w", program, err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			Dir        string
			EmbedFiles []string
			Module     *struct{ Main bool }
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("list what %s is made of: %w", program, err)
		}
		if p.Module == nil || !p.Module.Main {
			continue
		}
		if _, err := os.ReadDir(p.Dir); err != nil { // with the times and sizes of its files
			return err
		}
		for _, name := range p.EmbedFiles {
			if _, err := os.Stat(filepath.Join(p.Dir, name)); err != nil {
				return err
			}
		}
	}
}
