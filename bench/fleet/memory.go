package fleet

import (
	"fmt"
	"os"
	"path/filepath"

	"holdfast/internal/platform/runsc"
)

// imagesDir is in the lab's own tmpfs.
const imagesDir = "/run/bench-fleet"

// runtimeOf returns the engine's name of the n-th node's runtime. The nodes share the
// engine, and each stages images in its own directory.
func runtimeOf(n int) string { return fmt.Sprintf("moved-%d", n) }

// runsc returns the runtime of the n-th node, or nil if sessions do not keep their memory.
func (x *experiment) runsc(n int) *runsc.Runtime {
	if x.o.Runsc == "" {
		return nil
	}
	return &runsc.Runtime{Program: x.o.Runsc, Images: filepath.Join(imagesDir, runtimeOf(n))}
}

// runtimes returns the engine's arguments for the nodes' runtimes.
func (x *experiment) runtimes() (args []string, err error) {
	for n := 1; n <= x.o.Agents && x.o.Runsc != ""; n++ {
		r := x.runsc(n)
		if err := os.MkdirAll(r.Images, 0o700); err != nil {
			return nil, err
		}
		if err := r.Install(r.Images + ".runtime"); err != nil {
			return nil, err
		}
		args = append(args, "--add-runtime="+runtimeOf(n)+"="+r.Images+".runtime")
	}
	return args, nil
}
