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
)

// Build builds a program of this module, such as holdfast/cmd/holdfast, to the file
// path. The program is static. All builds of a test run have the same settings of CGO and
// -trimpath as a release, so that each dependency is compiled once. Any goroutine may call
// Build.
func Build(ctx context.Context, program, path string, flags ...string) error {
	if err := Uses(ctx, program); err != nil {
		return err
	}
	args := slices.Concat([]string{"build", "-trimpath"}, flags, []string{"-o", path, program})
	build := exec.CommandContext(ctx, "go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", program, err, out)
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
